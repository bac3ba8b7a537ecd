"""Limits for what a server may send: paramiko has none for a banner, a packet, or data beyond a channel's window."""

from __future__ import annotations

import socket
import threading

from paramiko import SSHException
from paramiko.buffered_pipe import BufferedPipe
from paramiko.packet import Packetizer

MAX_BANNER_BYTES = 64 << 10  # a server may send some lines before its version (RFC 4253, 4.2)
MAX_PACKET_BYTES = 256 << 10  # as in OpenSSH (PACKET_MAX_SIZE)
_VERSION = b"SSH-"
_MAX_WORDS = 60
# What sshd sends instead of its banner beyond MaxStartups, and to an address that it penalizes.
_DROPS = (b"Exceeded MaxStartups", b"Not allowed at this time")


class OversizedError(SSHException):
    """The server has sent more than the protocol ever needs."""


class BoundedPacketizer(Packetizer):
    """A reader of packets of limited size, which keeps what a server that doesn't speak SSH sends."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._heard = b""  # up to the version, and a little more

    @property
    def non_ssh_reply(self) -> str | None:
        """Return the first line of a server that doesn't speak SSH; None for one that does, or has sent nothing."""
        lines = [line.strip() for line in self._heard.split(b"\n") if line.strip()]
        is_ssh = any(line.startswith((_VERSION, *_DROPS)) for line in lines) and not self._is_overlong
        return lines[0][:_MAX_WORDS].decode("utf-8", "replace") if lines and not is_ssh else None

    @property
    def _is_overlong(self) -> bool:
        return len(self._heard) > MAX_BANNER_BYTES

    def _read_timeout(self, timeout: float) -> bytes:
        data: bytes = super()._read_timeout(timeout)  # type: ignore[misc] # of readline, for each piece
        self._heard += data
        if self._is_overlong:
            raise OversizedError("an endless banner")
        return data

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > MAX_PACKET_BYTES:
            raise OversizedError(f"a packet of {n} bytes")
        return super().read_all(n, check_rekey)


class BoundedPipe(BufferedPipe):  # type: ignore[type-arg] # generic in its stubs alone
    """A buffer for one stream of a channel: data that nobody has read yet, never more than the channel's window."""

    def __init__(self, window_bytes: int, arrived: threading.Event) -> None:
        """arrived: set after each piece and at the end; the two streams of a channel share it."""
        super().__init__()
        self._window_bytes = window_bytes
        self._arrived = arrived

    def feed(self, data: bytes) -> None:
        if len(self) + len(data) > self._window_bytes:
            raise OversizedError("more than the window of its channel")
        super().feed(data)
        self._arrived.set()

    def close(self) -> None:
        super().close()
        self._arrived.set()
