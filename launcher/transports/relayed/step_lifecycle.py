"""One srun from its start to its end: its relays, channels through it, hosts that it loses, when to end it.

SrunStep has a StepLifecycle, and is the StepProgram that it controls.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from launcher.concurrency import start_thread, start_timer
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.transports.base import STDERR
from launcher.transports.relayed.channel import RelayChannel, RelayLink
from launcher.transports.relayed.framing import Exit, ProcessOutput, RelayStarted

_REUSE_S = 0.5  # an idle relay gets another process; it is well below LINGER_S, after which the relay ends
# After the end of a host's task: what the host printed before may still be in the other pipe, and Slurm may
# report a moment later that it has cancelled the step.
_SETTLE_S = 0.2


@dataclass(slots=True)
class HostRelay:
    """What is known about the relay on one host; `Relays.changed` guards it."""

    host: str
    started: RelayStarted | None = None
    failure: HostFailure | None = None
    was_asked: bool = False  # a process was requested there
    is_awaited: bool = False  # a thread is waiting for it to start
    was_hung_up: bool = False  # a channel was closed while its process ran: it gets no other process
    idle_since: float | None = None  # monotonic seconds, since its last channel was closed
    channels: set[RelayChannel] = field(default_factory=set)  # that are open


class Relays:
    """All relays of a step by host, and all channels by number.

    `changed` guards them, and is notified when a relay starts or is lost. `mark_started`, `deliver` and `lose` take it
    themselves. Callers of anything else hold it, except of `is_usable` and `present`, whose answers may be outdated.
    A channel's number is never used again, and a host that is lost stays lost.
    """

    def __init__(self, hosts: Iterable[str], most_bytes: float = math.inf) -> None:
        """most_bytes: a limit for a channel's unread output that no relay exceeds unless it misbehaves."""
        self.changed = threading.Condition()
        self._relays = {host: HostRelay(host) for host in hosts}
        self._missing = len(self._relays)  # counted, since every thread that waits asks after every start
        self._channels: dict[int, RelayChannel] = {}
        self._numbers = itertools.count(1)
        self._most_bytes = most_bytes

    def __getitem__(self, host: str) -> HostRelay:
        return self._relays[host]

    def add_channel(self, relay: HostRelay, link: RelayLink) -> RelayChannel:
        """Return a new channel to a relay, which must have started; link: by which the channel reaches the relay."""
        channel = RelayChannel(relay.host, next(self._numbers), link, self._most_bytes)
        self._channels[channel.number] = channel
        relay.channels.add(channel)
        relay.idle_since = None
        return channel

    def leave(self, channel: RelayChannel) -> bool:
        """Note that a channel was closed; return whether its process still runs, in which case the relay must be told.

        For a channel that was closed before, return False.
        """
        relay = self._relays[channel.host]
        if channel not in relay.channels:
            return False
        relay.channels.remove(channel)
        relay.idle_since = None if relay.channels else time.monotonic()
        relay.was_hung_up = relay.was_hung_up or not channel.is_over
        return not channel.is_over

    def is_usable(self, host: str) -> bool:
        """Tell whether a process may be started on a host: it was not asked for yet, or its relay can take another."""
        relay = self._relays[host]
        is_idle_too_long = relay.idle_since is not None and time.monotonic() - relay.idle_since > _REUSE_S
        is_lost = relay.failure is not None or relay.was_hung_up or is_idle_too_long
        return not relay.was_asked or not is_lost

    def mark_started(self, host: str, started: RelayStarted) -> None:
        """Note that a host's relay has started; only the first call for a host counts."""
        with self.changed:
            relay = self._relays[host]
            if relay.started is None:
                relay.started = started
                self._missing -= 1
            self.changed.notify_all()

    def are_complete(self) -> bool:
        """Tell whether the relay of every host has started."""
        return not self._missing

    def present(self) -> dict[str, RelayStarted]:
        """Return the relays that have started, by host; some may have ended."""
        return {host: relay.started for host, relay in self._relays.items() if relay.started is not None}

    def are_unused(self) -> bool:
        """Tell whether the step is no longer needed: every host is lost, or was asked for and has no channel left."""
        return not any(
            relay.channels or relay.is_awaited or not (relay.was_asked or relay.failure)
            for relay in self._relays.values()
        )

    def wait_for(self, relay: HostRelay, is_over: Callable[[], object], timeout_s: float) -> bool:
        """Wait until `is_over()` is true, checking it after every change; return whether it came true in time.

        `changed` must be held.
        """
        relay.was_asked = relay.is_awaited = True
        try:
            return bool(self.changed.wait_for(is_over, timeout_s))
        finally:
            relay.is_awaited = False

    def deliver(self, event: ProcessOutput | Exit) -> None:
        """Pass a process's output, or its end, to its channel."""
        channel = self._channels.get(event.channel)
        if channel is None:
            return
        if isinstance(event, ProcessOutput):
            channel.deliver(event.stream, event.data)
            return
        with self.changed:
            self._channels.pop(event.channel, None)
        channel.end(event.code)

    def deliver_noise(self, line: str, hosts: Sequence[str] = ()) -> None:
        """Add a line that belongs to no process to the stderr of the channels to these hosts; no hosts means all."""
        for channel in self._channels.values():
            if not hosts or channel.host in hosts:
                channel.deliver_noise(as_noise(line))

    def lose(self, failures: Iterable[HostFailure]) -> None:
        """End the channels to hosts that are lost, each with its failure."""
        with self.changed:
            for failure in failures:
                relay = self._relays[failure.host]
                if relay.failure is None:
                    relay.failure = failure
                    for channel in relay.channels:
                        channel.end(None, failure)
            self.changed.notify_all()


def as_noise(line: str) -> bytes:
    """Return a line for stderr that belongs to no process, after a newline: the process's last line may lack one."""
    return f"\n{line}\n".encode()


class StepProgram(Protocol):
    """How srun is ended, and how a relay is told to end one process."""

    def send_shut(self, channel: RelayChannel) -> None:
        """Make the relay close the pipes of a process; `Relays.changed` is held."""

    def begin_end(self) -> None:
        """Let srun end, and with it every relay: they are no longer needed; `Relays.changed` is held."""

    def await_end(self) -> None:
        """Wait a moment for that end."""

    def terminate(self) -> None:
        """End srun at once."""

    def why_lost(self, host: str) -> HostFailure:
        """Return what has happened to a host's relay, as far as is known."""


class StepLifecycle:
    """Which hosts of one srun are in use, and whether it is ending.

    `relays.changed` guards all of it, and is notified of every change. `is_ending` becomes True once and stays so:
    when every host was asked for and is left or lost, or when the step is abandoned. From then on no host that was
    asked for is usable through this step; one that never was asked for may still report its failure.
    """

    def __init__(self, hosts: Sequence[str], process: StepProgram, program: str, most_bytes: float = math.inf) -> None:
        """program: as in the message "launch can't PROGRAM any more"; most_bytes: as for Relays."""
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

    def open_channel(self, relay: HostRelay, link: RelayLink, earlier: Iterable[str]) -> RelayChannel:
        """Return a new channel to a host, whose stderr begins with what was printed about the host earlier.

        `relays.changed` must be held, and the relay must have started.
        """
        channel = self.relays.add_channel(relay, link)
        for text in earlier:
            channel.deliver(STDERR, as_noise(text))
        return channel

    def give_up(self, relay: HostRelay, failure: HostFailure) -> HostFailure:
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
