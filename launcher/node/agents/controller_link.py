"""One TLS connection to the controller: messages both ways, without ever blocking."""

from __future__ import annotations

import select
import ssl

from launcher.node import clock, messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUT_BYTES = 256 << 10  # while this much waits to be sent, no process's output is read
_READ_BYTES = 64 << 10
_WRITE_BYTES = 16 << 10  # a TLS record


class ControllerLink:
    """A TLS connection, and the messages that wait to be sent.

    Once `is_lost` is set it stays so, and the owner closes the connection; messages that came before the loss are still
    returned by `receive`.
    """

    def __init__(self, sock: ssl.SSLSocket, name: str) -> None:
        """name: of the address, for messages; sock: non-blocking, with its handshake done."""
        self.name = name
        self.is_welcome = False  # the controller has accepted this agent
        self.is_lost = False
        self.heard_at = clock.boottime()
        self._socket = sock
        self._decoder = messages.Decoder()
        self._outgoing = bytearray()
        # TLS may have to write before it can read, or the reverse.
        self._receive_needs = select.POLLIN
        self._send_needs = select.POLLOUT

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def events(self) -> int:
        """Return the events to wait for now."""
        return self._receive_needs | (self._send_needs if self._outgoing else 0)

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits to be sent that no more output should be read."""
        return len(self._outgoing) >= OUT_BYTES

    @property
    def is_flushed(self) -> bool:
        """Tell whether nothing waits to be sent."""
        return not self._outgoing

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message; `flush` sends it."""
        self._outgoing += messages.encode(kind, payload, **fields)

    def flush(self) -> None:
        """Send as much as the network takes now."""
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    # After a refusal TLS expects the same bytes again, or more: bytes are only ever added behind them.
                    sent = self._socket.send(view[:_WRITE_BYTES])
                del self._outgoing[:sent]
        except ssl.SSLWantWriteError:
            self._send_needs = select.POLLOUT
        except ssl.SSLWantReadError:
            self._send_needs = select.POLLIN
        except OSError:
            self.is_lost = True

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the messages that have arrived. Reads all that is there, which the windows of the channels bound."""
        found: list[tuple[dict[str, Any], bytes]] = []
        try:
            while not self.is_lost:
                data = self._socket.recv(_READ_BYTES)
                if data:
                    self.heard_at = clock.boottime()
                    found += self._decoder.feed(data)
                else:
                    self.is_lost = True
        except ssl.SSLWantReadError:
            self._receive_needs = select.POLLIN
        except ssl.SSLWantWriteError:
            self._receive_needs = select.POLLIN | select.POLLOUT
        except (OSError, messages.MalformedMessage):
            self.is_lost = True
        return found

    def close(self) -> None:
        """Close the connection; what waits to be sent is dropped."""
        self._socket.close()
