"""The streams of one process that an agent has started: queues between the thread of the hub and others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.base import STDERR, STDOUT, TransportError

if TYPE_CHECKING:
    from launcher.transports.agents.link import AgentLink

_ACKNOWLEDGED_BYTES = 1 << 18  # an agent sends several times as much before it waits for an acknowledgement


class AgentChannel:
    """The streams of one process under the agent of its host; a Channel of launcher.transports.base.

    The hub adds what arrives, and its reader may be slow. Memory stays bounded: an agent has a window, and if it sends
    more than `most_bytes`, its channel ends.
    """

    def __init__(self, host: str, number: int, link: AgentLink, most_bytes: int) -> None:
        """most_bytes: more output than an agent with a window may send without an acknowledgement."""
        self.host = host
        self.number = number
        self._link = link
        self._most_bytes = most_bytes
        self._arrived = threading.Condition()
        self._pending = {STDOUT: bytearray(), STDERR: bytearray()}
        self._unacknowledged_bytes = 0  # that were read
        self._exit_code: int | None = None
        self._failure: HostFailure | None = None
        self._is_closed = False
        self._is_flooded = False

    def read(self) -> tuple[int, bytes]:
        stream, data = self._take()
        self._unacknowledged_bytes += len(data)
        if self._unacknowledged_bytes >= _ACKNOWLEDGED_BYTES:
            self._link.acknowledge(self, self._unacknowledged_bytes)
            self._unacknowledged_bytes = 0
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
        """Tell whether nothing more can come: the process has ended, or the connection to it."""
        return self._exit_code is not None or self._failure is not None

    # ---- from the hub's thread ------------------------------------------------------------------------------------

    def deliver(self, stream: int, data: bytes) -> None:
        """Add output; an agent that exceeds its window loses this channel, and its output is dropped."""
        with self._arrived:
            self._is_flooded = self._is_flooded or len(self._pending[stream]) + len(data) > self._most_bytes
            if self._is_flooded:
                self._pending[stream].clear()
                self._failure = self._failure or HostFailure(
                    self.host, HostFailureKind.PROTOCOL, "it sent more than its window allows"
                )
            else:
                self._pending[stream] += data
            self._arrived.notify_all()

    def end(self, exit_code: int | None, failure: HostFailure | None = None) -> None:
        """Note that the process has ended, or (failure) the connection to it; a second call changes nothing."""
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
                        return stream, data
                if self._failure is not None:
                    raise TransportError(self._failure)
                if self._exit_code is not None:
                    break
                self._arrived.wait()
        return 0, b""
