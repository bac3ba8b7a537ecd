"""SSH through pdsh: one process for all hosts, as large clusters know it (docs/decisions/0013)."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.errors import HostFailure, HostFailureKind, UsageError
from launcher.hosts.host import Host
from launcher.transports.base import Channel, TransportError
from launcher.transports.relayed.pdsh_command import Pdsh, own_words
from launcher.transports.relayed.pdsh_step import NotStartedError, Step
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.failures import is_passing, pass_on
from launcher.transports.ssh.logins import Gates, LoginError, keep_trying
from launcher.transports.ssh.openssh_config import Answer, Answers, keep_known_keys, login_words
from launcher.transports.ssh.this_machine import SSH_PORT, ThisMachine, is_this_machine

_NO_PYTHON = 127
_EXIT_OF_SSH = 255
_ASKED_AT_ONCE = 16


class PdshTransport:
    """Reaches hosts by one `pdsh -R ssh`, and those that it did not reach at first by one more each."""

    name = "pdsh"
    is_terse = True

    def __init__(
        self,
        hosts: Sequence[Host],
        pythons: Sequence[str],
        environ: Mapping[str, str],
        silence_s: float,
        ssh_config: Path | None = None,
        *,
        accept_new_host_keys: bool = False,
        may_boot: bool = False,
        on_local: Callable[[str], None] | None = None,
        on_doubt: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Find pdsh; raise UsageError where it or a named file is missing, or it can't do what is asked.

        environ: pdsh's; what it says to ssh in PDSH_SSH_ARGS_APPEND counts.
        silence_s: after which a host takes us for dead, whose machine does not answer it.
        may_boot: wait for a host that is not there yet, for as long as `open` may take.
        on_local: told of each host that turns out to be this machine, which then needs no SSH.
        on_doubt: told of each host that has this machine's address, why it may not be this machine, and what helps.
        """
        self._answers = Answers(shutil.which("ssh") or "ssh", ssh_config)
        self._this_machine = ThisMachine(on_local, on_doubt)
        self._here = {host.name for host in hosts if self._is_here(host, own_words(environ))}
        self._hosts = {host.name: host for host in hosts if host.name not in self._here}
        self._pdsh = Pdsh(list(self._hosts.values()), environ, ssh_config, accept_new_host_keys=accept_new_host_keys)
        self._ask_first()
        self._pythons = pythons
        self._silence_s = silence_s
        self._may_boot = may_boot
        self._gates = Gates()  # of second tries
        self._steps: dict[str, Step] = {}  # by host, the one by which it was reached last
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        if host.name in self._here:
            return self._this_machine.open(host, command, timeout_s)
        began_at = time.monotonic()
        try:
            return self._open_once(host, command, timeout_s)
        except LoginError as error:
            left_s = timeout_s - (time.monotonic() - began_at)
            if self._is_crowded(host, error.failure):
                self._steps[host.name].await_calm()
                left_s = timeout_s
            elif left_s <= 0 or not is_passing(error.failure, may_boot=self._may_boot):
                raise TransportError(pass_on(error.failure, host.name, error.gateway)) from error
        gate = self._gates[self._answer(host).gate_name]
        return keep_trying(
            host.name, gate, lambda try_s: self._open_once(host, command, try_s), left_s, may_boot=self._may_boot
        )

    def last_words(self, host: Host) -> Sequence[str]:
        return ()

    def _is_crowded(self, host: Host, failure: HostFailure) -> bool:
        """Whether our other hosts are to blame: pdsh has all log in at once, also through one gateway."""
        if failure.kind not in (HostFailureKind.DROPPED, HostFailureKind.SLOW_LOGIN):
            return False
        return not self._answer(host).is_direct

    def _answer(self, host: Host) -> Answer:
        """Return what ssh makes of a host; it was asked when pdsh was started."""
        return self._answers.of(host.name, self._pdsh.login_words(host))

    def _open_once(self, host: Host, command: str, timeout_s: float) -> Channel:
        """Start a process; raise LoginError where SSH does not lead there, or TransportError."""
        try:
            return self._find_step(host, timeout_s).open(host.name, command)
        except OSError as error:
            text = f"pdsh can't be started: {error.strerror}"
            failure = HostFailure(host.name, HostFailureKind.PDSH, text, "or --transport ssh")
            raise TransportError(failure) from None
        except NotStartedError as error:
            raise self._judge(host, error) from None

    def _find_step(self, host: Host, timeout_s: float) -> Step:
        """Return the step to a host: the one for all, or after a loss another one for this host alone."""
        with self._lock:
            step = self._steps.get(host.name)
            if step is None:
                hosts = list(self._hosts.values())
                self._steps.update(dict.fromkeys(self._hosts, self._start(hosts, timeout_s)))
            elif not step.is_usable(host.name):
                self._steps[host.name] = self._start([host], timeout_s)
            return self._steps[host.name]

    def _start(self, hosts: Sequence[Host], timeout_s: float) -> Step:
        self._keep_known_keys(hosts)
        return Step(
            self._pdsh, hosts, [python.replace("%", "%%") for python in self._pythons], timeout_s, self._silence_s
        )

    def _keep_known_keys(self, hosts: Sequence[Host]) -> None:
        """Look at the known_hosts file of each host before its ssh may write it: each may have one of its own."""
        try:
            with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(hosts))) as pool:
                list(pool.map(self._keep_known_keys_of, hosts))
        except RuntimeError:  # this machine has no thread left
            for host in hosts:
                self._keep_known_keys_of(host)

    def _keep_known_keys_of(self, host: Host) -> None:
        with contextlib.suppress(OSError, UsageError):  # its own ssh says so too
            answer = self._answer(host)
            keep_known_keys(answer, self._answers.of_jumps(answer), accept_new=False)  # the option is in the answer

    def _judge(self, host: Host, error: NotStartedError) -> LoginError | TransportError:
        if error.exit_code == _NO_PYTHON:
            text = f"no Python 3.8 or newer there (tried {', '.join(self._pythons)})"
            hint = "name one that is with --python PATH"
            return TransportError(HostFailure(host.name, HostFailureKind.NO_PYTHON, text, hint))
        if error.exit_code not in (None, _EXIT_OF_SSH):
            word = error.said.strip().rpartition("\n")[2]
            text = f"its login shell ended (exit code {error.exit_code}){word and f': {word[:200]}'}"
            return TransportError(HostFailure(host.name, HostFailureKind.SHELL, text))
        try:
            answer = self._answer(host)
            failure, gateway = openssh_failures.judge(
                error.said, answer, self._answers.of_jumps(answer), is_late=error.is_late
            )
        except UsageError as unknown:  # ssh_config makes no sense to ssh
            return LoginError(HostFailure(host.name, HostFailureKind.SSH, unknown.message, unknown.hint))
        return LoginError(failure, gateway)

    def _ask_first(self) -> None:
        """Raise UsageError for what ssh would refuse of every host: its options, and those of ssh_config."""
        with contextlib.suppress(OSError):  # no ssh
            self._answers.ask_first((host.name, self._pdsh.login_words(host)) for host in self._hosts.values())

    def _is_here(self, host: Host, words: Sequence[str]) -> bool:
        """Tell whether a host is this machine; ssh is asked about those alone whose name looks so."""
        try:
            if is_this_machine(host.name, host.port or SSH_PORT, host.user or getpass.getuser()):
                answer = self._answers.of(host.name, [*words, *login_words(host)])
                return answer.is_direct and self._this_machine.is_meant(answer.place, answer.settings)
        except (OSError, KeyError):  # no ssh, or a user id without a name
            pass
        return False
