"""This node's addresses, its route to node 0, and ports: hold them for torchrun, listen on them and try them."""

from __future__ import annotations

import array
import fcntl
import glob
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from launcher.node import messages
from launcher.node.system import read_rows, read_text

CONNECT_TIMEOUT_S = 3.0  # the kernel sends a lost packet again after 1 s
TOKEN = b"launch\n"  # what the listeners send, so that a probe can tell them from other programs
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux


def list_addresses() -> list[list[str]]:
    """Return [interface, address] for each address of this machine, IPv4 first; a load balancer has thousands."""
    return [*_list_ipv4(), *_list_ipv6()][: messages.MAX_ADDRESSES]


def _list_ipv4() -> list[list[str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        room = array.array("B", bytes(messages.MAX_ADDRESSES * _IFREQ_BYTES))
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
    states = sorted(glob.glob(root + "/sys/class/infiniband/*/ports/*/state"))
    ports = [path.split("/")[-4:-1] for path in states if "ACTIVE" in read_text(path)]
    return ["%s:%s" % (device, port) for device, _, port in ports]


def is_address(text: str) -> bool:
    """Tell whether `text` is an IP address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):  # ValueError: not ASCII, or with a NUL
            socket.inet_pton(family, text)
            return True
    return False


def find_route(master: str) -> dict[str, Any]:
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


def bind(address: str, port: int) -> socket.socket:
    """Bind a port (0: any free one) on all addresses: "", or "::", which is for IPv4 too.

    Who doesn't listen there keeps other programs from it, but not torchrun, nor who binds it in the same way.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def describe_error(error: Exception) -> str:
    """Return the text of a system or resolver error, without its number."""
    return getattr(error, "strerror", None) or str(error)


def time_look_up(peer: str) -> float:
    """Return how many seconds it takes to look up the name of an address, as TCPStore does for each connection."""
    began_at = time.monotonic()
    with suppress(OSError):  # an address without a name is fine; only the time counts
        socket.getnameinfo((peer, 0), 0)
    return time.monotonic() - began_at


def try_target(address: str, port: int) -> str | None:
    """Connect to a listener of another node; return an error or None."""
    try:
        with socket.create_connection((address, port), CONNECT_TIMEOUT_S) as sock:
            return None if sock.recv(len(TOKEN)) == TOKEN else "another program answers"
    except socket.timeout:
        return "no answer in %g s" % CONNECT_TIMEOUT_S
    except (OSError, UnicodeError) as error:
        return describe_error(error)
