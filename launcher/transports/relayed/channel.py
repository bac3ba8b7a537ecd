"""The streams of one process under a relay: two threads of a connection at one end, its step's at the other."""

from __future__ import annotations

import math
import threading
from typing import Protocol

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.base import STDERR, STDOUT, TransportError

_TOOK_BYTES = 1 << 18  # a relay with a window sends several times as much before it waits for our word
_NOISE_BYTES = 64 << 10  # that wait to be read


class RelayLink(Protocol):
    """What a channel needs of its step."""

    def acknowledge(self, channel: RelayChannel, size_bytes: int) -> None:
        """Let so much more output come."""

    def send_data(self, channel: RelayChannel, data: bytes) -> None:
        """Queue what goes to the process's stdin."""

    def leave(self, channel: RelayChannel) -> None:
        """Close the process's pipes; asked again, wait for the end of the step, where it ends."""


class RelayChannel:
    """The streams of one process under the relay of its node."""

    def __init__(self, host: str, number: int, link: RelayLink, most_bytes: float = math.inf) -> None:
        """most_bytes: what a relay with a window never sends before it waits for our word."""
        self.host = host
        self.number = number
        self._link = link
        self._most_bytes = most_bytes
        self._arrived = threading.Condition()
        self._pending = {STDOUT: bytearray(), STDERR: bytearray()}
        self._untold_bytes = 0  # taken, without a word to the relay so far
        self._exit_code: int | None = None
        self._failure: HostFailure | None = None
        self._is_closed = False
        self._is_flooded = False

    def read(self) -> tuple[int, bytes]:
        stream, data = self._take()
        self._untold_bytes += len(data)
        if self._untold_bytes >= _TOOK_BYTES:
            self._link.acknowledge(self, self._untold_bytes)
            self._untold_bytes = 0
        return stream, data

    def write(self, data: bytes) -> None:
        if self._failure is not None:
            raise BrokenPipeError(self._failure.text)
        self._link.send_data(self, data)

    def close(self) -> None:
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()
        self._link.leave(self)

    def exit_code(self) -> int | None:
        return self._exit_code

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or the way to it."""
        return self._exit_code is not None or self._failure is not None

    # ---- from the step's threads --------------------------------------------------------------------------------

    def deliver(self, stream: int, data: bytes) -> None:
        """Add what came; a relay that sends on without our word has said enough."""
        with self._arrived:
            self._is_flooded = self._is_flooded or len(self._pending[stream]) + len(data) > self._most_bytes
            if self._is_flooded:
                self._pending[stream].clear()
                self._failure = self._failure or HostFailure(
                    self.host, HostFailureKind.PROTOCOL, "it sends more than it may"
                )
            else:
                self._pending[stream] += data
            self._arrived.notify_all()

    def deliver_noise(self, data: bytes) -> None:
        """Add to stderr what nobody says whose it is; without room it is dropped, for it may be another host's."""
        with self._arrived:
            if len(self._pending[STDERR]) < _NOISE_BYTES:
                self._pending[STDERR] += data
                self._arrived.notify_all()

    def await_room(self, most_bytes: int) -> None:
        """Wait until less than this is left to read; who waits holds back what comes after."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._is_closed or sum(map(len, self._pending.values())) < most_bytes)

    def end(self, exit_code: int | None, failure: HostFailure | None = None) -> None:
        """Nothing more comes: the process has ended, or (failure) the way to it."""
        with self._arrived:
            if not self.is_over:
                self._exit_code, self._failure = exit_code, failure
            self._arrived.notify_all()

    def _take(self) -> tuple[int, bytes]:
        with self._arrived:
            while not self._is_closed:
                for stream, pending in self._pending.items():
                    if pending:
                        data = bytes(pending)
                        pending.clear()
                        self._arrived.notify_all()
                        return stream, data
                if self._failure is not None:
                    raise TransportError(self._failure)
                if self._exit_code is not None:
                    break
                self._arrived.wait()
        return 0, b""
