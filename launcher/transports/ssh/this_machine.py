"""Hosts that turn out to be this machine: their commands are started here, without SSH.

DNS or /etc/hosts can make another machine's name lead here, and a container may share the address of the machine around
it. SSH would notice that by the host key, so this machine's own keys are compared with those in known_hosts.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import socket
from collections.abc import Iterator
from pathlib import Path

from launcher.hosts.host import SSH_PORT, Host
from launcher.transports.base import Channel, TransportSettings
from launcher.transports.process_channel import LocalTransport
from launcher.transports.ssh.known_hosts import find_known_keys
from launcher.transports.ssh.openssh_config import HostConfig

_FOLDER = Path("/etc/ssh")


class ThisMachine:
    """Decides for every transport over SSH whether a host is this machine, and starts commands for it.

    A host is this machine only if a login to it would lead here in every respect: address, port 22, user, and no other
    host key in known_hosts. If a host key contradicts it, SSH is used, and `TransportSettings.say` gets the reason.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._say = settings.say
        self._local = LocalTransport()

    def open(self, host: Host, command: str, answer: HostConfig) -> Channel | None:
        """Start `command` here if a login to `host` would lead here; return None if it takes a login.

        answer: what `ssh -G` prints for the host.
        """
        return self.start(host, command) if self.is_meant(answer) else None

    def is_meant(self, answer: HostConfig) -> bool:
        """Tell whether a login would lead here; behind a jump host, the address may be another machine's."""
        place = answer.place
        if not answer.is_direct or not is_this_machine(place.host, place.port, place.user):
            return False
        known = {line.key for line in find_known_keys(answer) if not line.marker}
        if not known or known & set(_read_own()):
            return True
        doubt = "known_hosts has a different host key for it"
        self._say(f"{place.name} has this machine's address, but {doubt}; connecting over SSH")
        return False

    def start(self, host: Host, command: str) -> Channel:
        """Start `command` here without a login, for a host that `is_meant` found to be this machine."""
        self._say(f"{host.name} is this machine; not using SSH")
        return self._local.open(host, command, timeout_s=math.inf)  # it waits for nothing


def is_this_machine(hostname: str, port: int, user: str) -> bool:
    """Tell whether `user@hostname:port` is an address of this machine, port 22, and the user who runs `launch`."""
    if port != SSH_PORT or user != getpass.getuser():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, SSH_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)  # sends nothing; to one of its own addresses the kernel sends from that very address
            source: str = sock.getsockname()[0]
            return source == place[0] or (source.startswith("127.") and str(place[0]).startswith("127."))
    return False


def _read_own() -> Iterator[str]:
    """Yield this machine's host keys."""
    for path in _FOLDER.glob("ssh_host_*_key*.pub"):
        with contextlib.suppress(OSError):
            yield from path.read_text("utf-8", "replace").split()[1:2]
