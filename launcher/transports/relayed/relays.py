"""The relays of one srun or pdsh: which have started, which are lost, and which channels they carry."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from launcher.errors import HostFailure
from launcher.transports.relayed.channel import RelayChannel, RelayLink
from launcher.transports.relayed.framing import Exit, Output, RelayStarted

_REUSE_S = 0.5  # an idle relay gets another process; it is well below LINGER_S, after which the relay ends


@dataclass(slots=True)
class Relay:
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
        self._relays = {host: Relay(host) for host in hosts}
        self._missing = len(self._relays)  # counted, since every thread that waits asks after every start
        self._channels: dict[int, RelayChannel] = {}
        self._numbers = itertools.count(1)
        self._most_bytes = most_bytes

    def __getitem__(self, host: str) -> Relay:
        return self._relays[host]

    def add_channel(self, relay: Relay, link: RelayLink) -> RelayChannel:
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

    def are_settled(self) -> bool:
        """Tell whether the relay of every host has started or is lost."""
        return all(relay.started or relay.failure for relay in self._relays.values())

    def are_unused(self) -> bool:
        """Tell whether the step is no longer needed: every host is lost, or was asked for and has no channel left."""
        return not any(
            relay.channels or relay.is_awaited or not (relay.was_asked or relay.failure)
            for relay in self._relays.values()
        )

    def wait_for(self, relay: Relay, is_over: Callable[[], object], timeout_s: float) -> bool:
        """Wait until `is_over()` is true, checking it after every change; return whether it came true in time.

        `changed` must be held.
        """
        relay.was_asked = relay.is_awaited = True
        try:
            return bool(self.changed.wait_for(is_over, timeout_s))
        finally:
            relay.is_awaited = False

    def deliver(self, event: Output | Exit, hosts: Sequence[str] | None = None, most_bytes: int | None = None) -> None:
        """Pass a process's output, or its end, to its channel.

        hosts: those that may have sent it, if that is known; another host's channel doesn't get it.
        most_bytes: wait until less than this is left to read.
        """
        channel = self._channels.get(event.channel)
        if channel is None or (hosts is not None and channel.host not in hosts):
            return
        if isinstance(event, Output):
            channel.deliver(event.stream, event.data)
            if most_bytes is not None:
                channel.await_room(most_bytes)
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
