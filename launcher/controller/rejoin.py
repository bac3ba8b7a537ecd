"""Let hosts that come back rejoin a run: the controller logs in from its own host and starts their agents again.

It does so only where that works without a prompt: with keys that have no passphrase, to hosts whose key is known, and
without anybody's SSH agent.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from launcher.concurrency import start_thread
from launcher.controller.agent_start import Order, make_order, start_again
from launcher.controller.orders import Control
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.runs.run_list import RunListEntry
from launcher.session.settings import loader_pythons
from launcher.transports.agents.hub import Absence, Hub
from launcher.transports.base import Transport, TransportSettings, failure_of
from launcher.transports.process_channel import LocalTransport
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.wording import age

FIRST_TRY_S = 20.0  # after its loss: an agent that was cut off dials again by itself
# Between two tries: a host boots for minutes, and fail2ban bans an address after five refusals in ten minutes.
PAUSE_S = 150.0
_LOGINS_AT_ONCE = 8


@dataclass(slots=True)
class _Tries:
    """The logins to one host since it is missing."""

    due_at_s: float = FIRST_TRY_S  # after its loss
    is_running: bool = False


def watch_agents(
    request: Control, hub: Hub, entry: RunListEntry, is_changed: threading.Event, addresses: Sequence[str], port: int,
    *, variables: Mapping[str, str], say: Callable[[str], object],
) -> None:  # fmt: skip
    """Write down, in a thread, which agents are missing, and let them rejoin a run that may be restarted.

    is_changed: set when an agent comes or goes; addresses, port: where the hub listens; variables: the environment of
    this process.
    """
    hosts = (*request.hosts, *request.spares)
    own = next((host for host in hosts if host.name == request.host), Host(request.host or socket.gethostname()))
    orders = [
        make_order(request, hub.run_id, index, host, own, addresses, port) for index, host in enumerate(hosts)
    ]  # fmt: skip
    settings = TransportSettings(is_unattended=True, variables=variables)
    rejoining = Rejoining(
        hub, hosts, orders, loader_pythons(request.job.python), own=own.name,
        open_ssh=functools.cache(partial(OpenSSHTransport, settings)), may_log_in=bool(request.options.restarts),
        say=say,
    )  # fmt: skip
    start_thread(partial(rejoining.serve, is_changed, entry.note_missing), "agents", lambda error: None)


class Rejoining:
    """Watches a hub for hosts that are missing, tries to start their agents, and says when one is back.

    `serve` has a thread, and each login another one; `_lock` guards the tries, which only a login of that host and
    `serve` change.
    """

    def __init__(
        self, hub: Hub, hosts: Sequence[Host], orders: Sequence[Order], pythons: Sequence[str], *, own: str,
        open_ssh: Callable[[], Transport], may_log_in: bool, say: Callable[[str], object],
    ) -> None:  # fmt: skip
        """orders: of the hosts' agents; own: the name of this host; open_ssh: raises LauncherError without ssh.

        may_log_in: the run can have a host back.
        """
        self._hub = hub
        self._hosts = {host.name: host for host in hosts}
        self._orders = dict(zip(self._hosts, orders, strict=True))
        self._pythons = pythons
        self._own = own
        self._open_ssh = open_ssh
        self._say = say
        self._lock = threading.Lock()
        self._tries: dict[str, _Tries] = {}
        self._may_log_in = may_log_in
        self._window = threading.Semaphore(_LOGINS_AT_ONCE)

    def serve(self, is_changed: threading.Event, note_missing: Callable[[Sequence[str]], object]) -> None:
        """Work until this process ends; is_changed: set when an agent comes or goes.

        note_missing: gets the hosts whose agent is missing, whenever that may have changed.
        """
        while True:
            note_missing(self._hub.missing())
            self._mention()
            wait_s = self._try_missing(is_changed)
            is_changed.wait(wait_s)
            is_changed.clear()

    def _mention(self) -> None:
        """Say which hosts are back."""
        for found in self._hub.take_returns():
            with self._lock:
                if found.host in self._tries and not self._tries[found.host].is_running:
                    del self._tries[found.host]
            if found.missing_s >= FIRST_TRY_S:  # otherwise the loss that the run has told is all there is to say
                self._say(f"launch: {found.host} is connected again after {age(found.missing_s)}")

    def _try_missing(self, is_changed: threading.Event) -> float | None:
        """Begin the logins that are due; return in how many seconds to look again, None: at a change."""
        waits = []
        for absence in self._hub.find_absences() if self._may_log_in else ():
            with self._lock:
                tries = self._tries.setdefault(absence.host, _Tries())
                if tries.is_running:
                    continue
                left_s = tries.due_at_s - absence.missing_s
                tries.is_running = left_s <= 0
            if left_s > 0:
                waits.append(left_s)
                continue
            try:
                start_thread(partial(self._log_in, absence, is_changed), f"rejoin {absence.host}", lambda error: None)
            except LauncherError as error:  # no thread is left
                failure = HostFailure(absence.host, HostFailureKind.THREADS, error.message)
                self._note_failure(absence, failure)
                waits.append(PAUSE_S)
        return min(waits, default=None)

    def _log_in(self, absence: Absence, is_changed: threading.Event) -> None:
        host, order = self._hosts[absence.host], self._orders[absence.host]
        try:
            with self._window:
                transport = LocalTransport() if host.name == self._own else self._open_ssh()
                start_again(transport, host, self._pythons, order, self._own)
            with self._lock:
                del self._tries[absence.host]  # it is connected
        except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
            self._note_failure(absence, failure_of(absence.host, error))
        is_changed.set()

    def _note_failure(self, absence: Absence, failure: HostFailure) -> None:
        self._hub.note_try(absence.host, f"from {self._own}: {failure.text}")
        now_s = next((now.missing_s for now in self._hub.find_absences() if now.host == absence.host), None)
        with self._lock:
            if now_s is None:  # it came back by itself
                del self._tries[absence.host]
            else:
                self._tries[absence.host] = _Tries(now_s + PAUSE_S)
