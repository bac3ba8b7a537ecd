"""One srun or pdsh from its start to its end: channels through it, hosts that it loses, and when to end it.

SrunStep and PdshStep have this in common. Each has a StepLifecycle, and is the StepProgram that it controls.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from launcher.concurrency import start_thread, start_timer
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.transports.base import STDERR
from launcher.transports.relayed.channel import RelayChannel, RelayLink
from launcher.transports.relayed.relays import Relay, Relays, as_noise

# After the end of a host's task or ssh: what the host printed before may still be in the other pipe, and Slurm may
# report a moment later that it has cancelled the step.
_SETTLE_S = 0.2


class StepProgram(Protocol):
    """What differs between srun and pdsh: how they are ended, and how a relay is told to end one process."""

    def send_shut(self, channel: RelayChannel) -> None:
        """Make the relay close the pipes of a process; `Relays.changed` is held."""

    def begin_end(self) -> None:
        """Let srun or pdsh end, and with it every relay: they are no longer needed; `Relays.changed` is held."""

    def await_end(self) -> None:
        """Wait a moment for that end."""

    def terminate(self) -> None:
        """End srun or pdsh at once."""

    def why_lost(self, host: str) -> HostFailure:
        """Return what has happened to a host's relay, as far as is known."""


class StepLifecycle:
    """Which hosts of one srun or pdsh are in use, and whether it is ending.

    `relays.changed` guards all of it, and is notified of every change. `is_ending` becomes True once and stays so:
    when every host was asked for and is left or lost, or when the step is abandoned. From then on no host that was
    asked for is usable through this step; one that never was asked for may still report its failure.
    """

    def __init__(self, hosts: Sequence[str], process: StepProgram, program: str, most_bytes: float = math.inf) -> None:
        """program: as in the message "launch can't PROGRAM any more", like "read pdsh"; most_bytes: as for Relays."""
        self.relays = Relays(hosts, most_bytes)
        self.is_ending = False
        self._hosts = tuple(hosts)
        self._process = process
        self._program = program

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """End the process again if starting its threads raises LauncherError: without them it can't be used."""
        try:
            yield
        except LauncherError:
            self._process.terminate()
            raise

    def start_thread(self, work: Callable[[], object], name: str) -> threading.Thread:
        """Run `work` on a stream of the process; an exception in it loses all hosts and ends the process."""
        return start_thread(work, name, self._break)

    def open_channel(self, relay: Relay, link: RelayLink, earlier: Iterable[str]) -> RelayChannel:
        """Return a new channel to a host, whose stderr begins with what was printed about the host earlier.

        `relays.changed` must be held, and the relay must have started.
        """
        channel = self.relays.add_channel(relay, link)
        for text in earlier:
            channel.deliver(STDERR, as_noise(text))
        return channel

    def give_up(self, relay: Relay, failure: HostFailure) -> HostFailure:
        """Count a host as lost and return why: `failure`, if nothing was known before; `relays.changed` is held."""
        relay.failure = relay.failure or failure
        self.relays.changed.notify_all()
        self._end_if_unused()
        return relay.failure

    def is_usable(self, host: str) -> bool:
        """Tell whether a process, another one perhaps, may be started on a host through this step."""
        return self.relays.is_usable(host) and not (self.is_ending and self.relays[host].was_asked)

    def leave(self, channel: RelayChannel) -> None:
        """Close the pipes of a channel's process; if no host needs the step any more, wait a moment for its end."""
        with self.relays.changed:
            if self.relays.leave(channel):
                self._process.send_shut(channel)
            self._end_if_unused()
            is_ending = self.is_ending
        if is_ending:
            self._process.await_end()

    def abandon(self) -> None:
        """End the step although hosts may need it: it waits for hosts that don't start, and a new step does not."""
        with self.relays.changed:
            self.is_ending = True
            self.relays.changed.notify_all()
        self._process.terminate()

    def lose_soon(self, hosts: Sequence[str]) -> None:
        """End the channels to hosts that are gone, once what they have printed has had time to arrive."""
        start_timer(_SETTLE_S, partial(self.lose, hosts), self._break)

    def lose(self, hosts: Iterable[str]) -> None:
        """End the channels to hosts that are gone."""
        self.relays.lose(map(self._process.why_lost, hosts))

    def _end_if_unused(self) -> None:
        if self.relays.are_unused() and not self.is_ending:
            self.is_ending = True
            self._process.begin_end()

    def _break(self, error: Exception) -> None:
        """Lose all hosts after a thread has failed: their output is no longer read, or their input no longer sent."""
        text = f"launch can't {self._program} any more: {error!r}"
        self.relays.lose([HostFailure(host, HostFailureKind.CONNECTION, text) for host in self._hosts])
        self._process.terminate()
