"""A wire between a host and the switch that delays or loses packets between hosts; many kernels lack netem for that.

Arguments: INTERFACE LAUNCH_HOST DELAY_S LOSES. Run it in the switch's network namespace; it runs until its standard
input closes. Packets from and to the launch host pass unchanged, so that tests log in without delay. LOSES is one of
`nothing`, `data` (every third segment with data) and `opening` (the first three SYNs from a host to a port of another).
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 1 | 2 | 4  # TUN_F_CSUM, TSO4 and TSO6
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL, ETH_P_IP = 3, 0x0800
VNET_BYTES, ETHERNET_BYTES = 10, 14  # before an IP header; the first has the work that is left to the card (offload)
SYN, ACK = 0x02, 0x10


def open_tap(name: str) -> int:
    """Create a network interface for the switch, which this program reads and writes."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, OFFLOADS)
    return tap


def open_card(name: str) -> socket.socket:
    """Open the switch's end of the host's cable."""
    card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    card.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    card.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    card.setblocking(False)
    card.bind((name, ETH_P_ALL))
    return card


def make_judge(launch_host: str, loses: str) -> Callable[[bytes], bool | None]:
    """Return a function that says whether a frame is lost, or None if it isn't an IP packet between two hosts."""
    own = socket.inet_aton(launch_host)
    counted = 0
    met: Counter[bytes] = Counter()  # by both addresses and the port

    def is_lost(frame: bytes) -> bool | None:
        nonlocal counted
        ethernet = frame[VNET_BYTES:]
        packet = ethernet[ETHERNET_BYTES:]
        if ethernet[12:14] != struct.pack(">H", ETH_P_IP) or own in (packet[12:16], packet[16:20]):
            return None
        if packet[9] != socket.IPPROTO_TCP:
            return False
        header_bytes, (total,) = (packet[0] & 15) * 4, struct.unpack_from(">H", packet, 2)
        segment = packet[header_bytes:total]
        if loses == "data" and len(segment) > (segment[12] >> 4) * 4:
            counted += 1
            return counted % 3 == 0
        if loses == "opening" and segment[13] & (SYN | ACK) == SYN:
            place = packet[12:20] + segment[2:4]
            met[place] += 1
            return met[place] <= 3
        return False

    return is_lost


def carry(tap: int, card: int, delay_s: float, is_lost: Callable[[bytes], bool | None]) -> None:
    """Carry frames in both directions until standard input closes."""
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([tap, card, 0], [], [], timeout_s)[0]
        if 0 in ready and not os.read(0, 1):
            return
        for source, target in ((tap, card), (card, tap)):
            while source in ready:
                try:
                    frame = os.read(source, 1 << 17)
                except OSError:
                    break
                lost = is_lost(frame)
                if not lost:
                    due = time.monotonic() + (0.0 if lost is None else delay_s / 2)
                    number += 1
                    heapq.heappush(waiting, (due, number, target, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the cable was pulled
                os.write(target, frame)


def main(interface: str, launch_host: str, delay_s: str, loses: str) -> None:
    """Take the host's place at the switch, print `ready`, and give the place back at the end."""
    name = f"wire-{interface}"
    tap, card = open_tap(name), open_card(interface)
    lines = f"link set {interface} nomaster promisc on\nlink set {name} master bridge up\n"
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
    print("ready", flush=True)
    carry(tap, card.fileno(), float(delay_s), make_judge(launch_host, loses))
    os.close(tap)
    subprocess.run(["ip", "link", "set", interface, "master", "bridge", "promisc", "off"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
