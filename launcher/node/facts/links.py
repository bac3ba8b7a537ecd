"""How well a connection to another node works: its round trip time, and how many of its packets were lost.

Both are measured by the kernel (TCP_INFO), so busy programs on either machine don't distort them.
"""

from __future__ import annotations

import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    Link = List[float]  # fastest round trip in seconds, packets sent, packets lost

# The kernel resends a lost SYN only after 1 s and 3 s (since 6.5 each second). One last attempt follows these.
ATTEMPTS_S = (0.5, 0.5, 0.5)
PACKETS, PAUSE_S = 16, 0.0002  # without the pause they would be sent as one
# If something looks wrong, measure again and for longer: a machine may have paused for a moment.
MORE_PACKETS, MORE_PAUSE_S = 40, 0.005
SLOW_S = 0.005
SETTLE_S = 0.3  # until everything is acknowledged; a packet lost at the end is resent after 0.2 s
_INFO_BYTES = 256
# Offsets in struct tcp_info of linux/tcp.h, which only ever grows at its end.
_UNACKED, _RTT, _TOTAL_RETRANS, _MIN_RTT, _DATA_SEGS_OUT, _DSACK_DUPS = 24, 68, 100, 148, 156, 216
_NO_SAMPLE = 0xFFFFFFFF


def connect(address: str, port: int, deadline: float) -> Tuple[socket.socket, int]:
    """Return a connection, and how many attempts timed out before it; deadline: monotonic seconds."""
    unanswered = 0
    for wait_s in ATTEMPTS_S:
        if deadline - time.monotonic() < 2 * wait_s:
            break
        try:
            return socket.create_connection((address, port), wait_s), unanswered
        except socket.timeout:
            unanswered += 1
    return socket.create_connection((address, port), max(0.1, deadline - time.monotonic())), unanswered


def measure(sock: socket.socket, *, is_suspect: bool) -> Link | None:
    """Send a few bytes to another node's listener, and return what the kernel measured, or None if it doesn't tell.

    is_suspect: an attempt to connect timed out, which also happens with neighbours that have just come up.
    """
    found = None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        found = _send(sock, PACKETS, PAUSE_S)
        if found is not None and (is_suspect or found[2] or found[0] > SLOW_S):
            found = _send(sock, MORE_PACKETS, MORE_PAUSE_S)
    except OSError:
        pass  # the other side has closed the connection; keep what was found before
    return found


def _send(sock: socket.socket, packets: int, pause_s: float) -> Link | None:
    for _ in range(packets):
        sock.send(b".", socket.MSG_NOSIGNAL)
        time.sleep(pause_s)
    deadline = time.monotonic() + SETTLE_S
    while True:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _DATA_SEGS_OUT + 4:  # Linux before 4.6, or a system that only emulates Linux
            return None
        if not _read(info, _UNACKED) or time.monotonic() > deadline:
            return _read_link(info)
        time.sleep(0.001)


def _read_link(info: bytes) -> Link:
    quickest_us = _read(info, _MIN_RTT)
    if quickest_us == _NO_SAMPLE:
        quickest_us = _read(info, _RTT)
    # A packet that arrived twice wasn't lost, only late.
    late = _read(info, _DSACK_DUPS) if len(info) >= _DSACK_DUPS + 4 else 0
    lost = max(0, _read(info, _TOTAL_RETRANS) - late)
    return [quickest_us / 1e6, _read(info, _DATA_SEGS_OUT) + 1, lost]  # and a SYN


def _read(info: bytes, offset: int) -> int:
    number: int = struct.unpack_from("=I", info, offset)[0]
    return number
