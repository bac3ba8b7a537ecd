"""This machine, without SSH: the same command line, in a session of its own."""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Sequence

from launcher.hosts import Host
from launcher.transports.processes import ProcessChannel, start_process

SSH_PORT = 22


class LocalTransport:
    """Runs the node's side on this machine."""

    name = "local"
    is_terse = False

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        return ProcessChannel(start_process(["/bin/sh", "-c", command]))

    def last_words(self, host: Host) -> Sequence[str]:
        return ()


def is_this_machine(hostname: str, port: int, user: str) -> bool:
    """Tell whether a login to `user@hostname:port` would end where we are: address, port 22 and user are ours."""
    if port != SSH_PORT or user != _own_user():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, SSH_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)  # sends nothing; to an address of ours the kernel goes from that very address
            source: str = sock.getsockname()[0]
            return source == place[0] or (source.startswith("127.") and str(place[0]).startswith("127."))
    return False


def _own_user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return None
