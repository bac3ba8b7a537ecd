"""The relays of one srun or pdsh, the channels through them, and when nobody needs them any more."""

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

_REUSE_S = 0.5  # well below a relay's LINGER_S


@dataclass(slots=True)
class Relay:
    """One node, as it is known here."""

    host: str
    started: RelayStarted | None = None
    failure: HostFailure | None = None
    was_asked: bool = False
    is_awaited: bool = False  # somebody asks for it just now
    was_hung_up: bool = False  # hung up on while something ran there: not to be trusted with another process
    idle_since: float | None = None  # monotonic seconds: it ends by itself when nothing runs there
    channels: set[RelayChannel] = field(default_factory=set)  # that were not closed


class Relays:
    """All relays by host. `changed` guards them, and tells of what the threads of a step have learned."""

    def __init__(self, hosts: Iterable[str], most_bytes: float = math.inf) -> None:
        """most_bytes: of a channel's output, that may wait here to be taken."""
        self.changed = threading.Condition()
        self._relays = {host: Relay(host) for host in hosts}
        self._missing = len(self._relays)  # counted, since every thread that waits asks after every start
        self._channels: dict[int, RelayChannel] = {}
        self._numbers = itertools.count(1)
        self._most_bytes = most_bytes

    def __getitem__(self, host: str) -> Relay:
        return self._relays[host]

    def add_channel(self, relay: Relay, link: RelayLink) -> RelayChannel:
        """Return a new channel to a node."""
        channel = RelayChannel(relay.host, next(self._numbers), link, self._most_bytes)
        self._channels[channel.number] = channel
        relay.channels.add(channel)
        relay.idle_since = None
        return channel

    def leave(self, channel: RelayChannel) -> bool:
        """Forget a channel; return whether something ran there still, and is to be hung up on."""
        relay = self._relays[channel.host]
        if channel not in relay.channels:
            return False
        relay.channels.remove(channel)
        relay.idle_since = None if relay.channels else time.monotonic()
        relay.was_hung_up = relay.was_hung_up or not channel.is_over
        return not channel.is_over

    def is_usable(self, host: str) -> bool:
        """Whether a process, another one perhaps, may be started there."""
        relay = self._relays[host]
        is_idle_too_long = relay.idle_since is not None and time.monotonic() - relay.idle_since > _REUSE_S
        is_lost = relay.failure is not None or relay.was_hung_up or is_idle_too_long
        return not relay.was_asked or not is_lost

    def mark_started(self, host: str, started: RelayStarted) -> None:
        """Note that a host's relay runs; a second word of it changes nothing."""
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
        """Return the relays that run, or have run, by host."""
        return {host: relay.started for host, relay in self._relays.items() if relay.started is not None}

    def are_settled(self) -> bool:
        """Whether of every host it is known that its relay runs, or why not."""
        return all(relay.started or relay.failure for relay in self._relays.values())

    def are_unused(self) -> bool:
        """Whether every host was asked and left."""
        return not any(
            relay.channels or relay.is_awaited or not (relay.was_asked or relay.failure)
            for relay in self._relays.values()
        )

    def wait_for(self, relay: Relay, is_over: Callable[[], object], timeout_s: float) -> bool:
        """Wait until `is_over`, which the threads of a step bring about, with `changed` held; False: too late."""
        relay.was_asked = relay.is_awaited = True
        try:
            return bool(self.changed.wait_for(is_over, timeout_s))
        finally:
            relay.is_awaited = False

    def deliver(self, event: Output | Exit, hosts: Sequence[str] | None = None, most_bytes: int | None = None) -> None:
        """Hand over what a process has said, or its end.

        hosts: who may have said so, where that is known; most_bytes: how much more may wait for its reader.
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
        """Show a line that no process has said to who talks to these hosts, or to all."""
        for channel in self._channels.values():
            if not hosts or channel.host in hosts:
                channel.deliver_noise(as_noise(line))

    def lose(self, failures: Iterable[HostFailure]) -> None:
        """End what goes through the relays of these hosts."""
        with self.changed:
            for failure in failures:
                relay = self._relays[failure.host]
                if relay.failure is None:
                    relay.failure = failure
                    for channel in relay.channels:
                        channel.end(None, failure)
            self.changed.notify_all()


def as_noise(line: str) -> bytes:
    """Return a line for stderr: what the process itself has said may lack its newline."""
    return f"\n{line}\n".encode()
