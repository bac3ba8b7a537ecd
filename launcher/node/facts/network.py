"""This node's addresses, its route to node 0, and ports: hold them for torchrun, listen on them and try them."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import time
from typing import Any, List, Tuple

from launcher.node.system import read_rows, read_text

Link = List[float]  # fastest round trip in seconds, packets sent, packets lost


CONNECT_TIMEOUT_S = 3.0
RETRY_S = 0.5
TOKEN = b"launch\n"  # what the listeners send, so that a probe can tell them from other programs
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux
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


def list_addresses() -> list[list[str]]:
    """Return [interface, address] for each address of this machine, IPv4 first, and of each the first of an interface.

    A load balancer or a Kubernetes node has thousands, and nobody needs more than some of them.
    """
    return [*_one_of_each_first(_list_ipv4()), *_one_of_each_first(_list_ipv6())]


def _one_of_each_first(found: list[list[str]]) -> list[list[str]]:
    first: dict[str, str] = {}
    for interface, address in found:
        first.setdefault(interface, address)
    return sorted(found, key=lambda each: first[each[0]] != each[1])


def _list_ipv4() -> list[list[str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # Without a buffer it returns the size; some may be added meanwhile.
        size = struct.unpack("iL", fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, struct.pack("iL", 0, 0)))[0]
        room = array.array("B", bytes(size + 256 * _IFREQ_BYTES))
        place, _ = room.buffer_info()
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, struct.pack("iL", len(room), place))
    size = struct.unpack("iL", answer)[0]
    found = []
    for start in range(0, size, _IFREQ_BYTES):
        record = room[start : start + _IFREQ_BYTES].tobytes()
        name = record[:16].split(b"\0", 1)[0].decode()
        found.append([name, socket.inet_ntoa(record[20:24])])
    return found


def _list_ipv6() -> list[list[str]]:
    rows = read_rows("/proc/net/if_inet6")
    return [[words[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))] for words in rows]


def list_networks(root: str = "") -> list[dict[str, Any]]:
    """Return interface, network (`10.0.1.0/24`) and speed (Mbit/s, None: unknown) of each IPv4 subnet of this node."""
    found = []
    for row in read_rows(root + "/proc/net/route")[1:]:
        interface, destination, gateway, mask = row[0], row[1], row[2], row[7]
        if gateway == "00000000" and mask != "00000000":
            network = socket.inet_ntoa(bytes.fromhex(destination)[::-1])  # the kernel writes them in its own byte order
            name = "%s/%d" % (network, bin(int(mask, 16)).count("1"))
            found.append({"interface": interface, "network": name, "speed_mbps": _read_speed(interface, root)})
    return found


def _read_speed(interface: str, root: str) -> int | None:
    speed = read_text("%s/sys/class/net/%s/speed" % (root, interface)).strip()
    return int(speed) or None if speed.isdigit() else None  # one that is down or virtual has none, or -1


def list_infiniband(root: str = "") -> list[str]:
    """Return the active InfiniBand and RoCE ports, such as `mlx5_0:1`."""
    base = root + "/sys/class/infiniband"
    places = [(device, os.path.join(base, device, "ports")) for device in _list_folder(base)]
    return [
        "%s:%s" % (device, port)
        for device, ports in places
        for port in _list_folder(ports)
        if "ACTIVE" in read_text(os.path.join(ports, port, "state"))
    ]


def _list_folder(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def is_address(text: str) -> bool:
    """Tell whether `text` is an IP address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):  # ValueError: not ASCII, or with a NUL
            continue
        return True
    return False


def find_route(master: str) -> dict[str, str | None]:
    """Return this node's interface and address on the route to `master`, as a UDP socket shows them, or `error`."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(place)
            source = sock.getsockname()[0].split("%")[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        return {"error": describe_error(error)}
    for interface, address in list_addresses():
        if address == source:
            return {"interface": interface, "address": source}
    # All of 127.0.0.0/8 is this machine, but only 127.0.0.1 is listed.
    return {"interface": "lo" if source.startswith("127.") else None, "address": source}


def hold_port(port: int) -> socket.socket:
    """Bind `port` (0: any free one) without listening, so that torchrun can still bind it but other programs can't."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
    except OSError:
        sock.close()
        raise
    return sock


def listen(address: str, port: int) -> socket.socket:
    """Listen on a port (0: any free one), which may be one that is held, and stays held; `::` accepts IPv4 too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(512)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def describe_error(error: Exception) -> str:
    """Return the text of a system or resolver error, without its number."""
    return getattr(error, "strerror", None) or str(error)


def time_look_up(peer: str | None) -> float | None:
    """Return how many seconds it takes to look up the name of an address, as TCPStore does for each connection."""
    began_at = time.monotonic()
    if peer is None:
        return None
    try:
        socket.getnameinfo((peer, 0), 0)
    except OSError:
        pass  # an address without a name is fine; only the time counts
    return time.monotonic() - began_at


def try_target(address: str, port: int, *, is_measured: bool) -> tuple[str | None, Link | None]:
    """Connect; return an error or None, and a link or None."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    before: str | None = None  # the first try's error: routers limit how often they repeat it
    while True:
        try:
            sock, unanswered = _connect(address, port, deadline)
            with sock:
                sock.settimeout(max(0.1, deadline - time.monotonic()))
                if sock.recv(len(TOKEN)) != TOKEN:
                    return "another program answers", None
                return None, _measure(sock, is_suspect=unanswered > 0) if is_measured else None
        except socket.timeout:
            return before or "no answer in %g s" % CONNECT_TIMEOUT_S, None
        except (OSError, UnicodeError) as error:
            before = describe_error(error)
            # "No route to host" also comes, for a moment, from a neighbour that has just come up.
            if getattr(error, "errno", None) != errno.EHOSTUNREACH or time.monotonic() + RETRY_S > deadline:
                return before, None
            time.sleep(RETRY_S)


# ---- how well a connection works: its round trip time, and how many of its packets were lost -------------------------
# Both are measured by the kernel (TCP_INFO), so busy programs on either machine don't distort them.


def _connect(address: str, port: int, deadline: float) -> Tuple[socket.socket, int]:
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


def _measure(sock: socket.socket, *, is_suspect: bool) -> Link | None:
    """Send a few bytes to another node's listener, and return what the kernel measured, or None if it doesn't tell.

    is_suspect: an attempt to connect timed out, which also happens with neighbours that have just come up.
    """
    found = None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        found = _send_packets(sock, PACKETS, PAUSE_S)
        if found is not None and (is_suspect or found[2] or found[0] > SLOW_S):
            found = _send_packets(sock, MORE_PACKETS, MORE_PAUSE_S)
    except OSError:
        pass  # the other side has closed the connection; keep what was found before
    return found


def _send_packets(sock: socket.socket, packets: int, pause_s: float) -> Link | None:
    for _ in range(packets):
        sock.send(b".", socket.MSG_NOSIGNAL)
        time.sleep(pause_s)
    deadline = time.monotonic() + SETTLE_S
    while True:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _DATA_SEGS_OUT + 4:  # Linux before 4.6, or a system that only emulates Linux
            return None
        if not _read_number(info, _UNACKED) or time.monotonic() > deadline:
            return _read_measures(info)
        time.sleep(0.001)


def _read_measures(info: bytes) -> Link:
    quickest_us = _read_number(info, _MIN_RTT)
    if quickest_us == _NO_SAMPLE:
        quickest_us = _read_number(info, _RTT)
    # A packet that arrived twice wasn't lost, only late.
    late = _read_number(info, _DSACK_DUPS) if len(info) >= _DSACK_DUPS + 4 else 0
    lost = max(0, _read_number(info, _TOTAL_RETRANS) - late)
    return [quickest_us / 1e6, _read_number(info, _DATA_SEGS_OUT) + 1, lost]  # and a SYN


def _read_number(info: bytes, offset: int) -> int:
    number: int = struct.unpack_from("=I", info, offset)[0]
    return number
