"""Hosts that turn out to be this machine: their commands are started here, without SSH."""

from __future__ import annotations

import contextlib
import getpass
import math
import socket
from collections.abc import Mapping

from launcher.hosts.host import Host
from launcher.transports.base import Channel
from launcher.transports.local import LocalTransport
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh.failures import Place
from launcher.transports.ssh.own_host_keys import find_objection

SSH_PORT = 22


class ThisMachine:
    """Decides for every transport over SSH whether a host is this machine, and starts commands for it.

    A host is this machine only if a login to it would lead here in every respect: address, port 22, user, and no other
    host key in known_hosts. If host keys contradict it, SSH is used, and `TransportSettings.on_doubt` gets the reason.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._on_local = settings.on_local
        self._on_doubt = settings.on_doubt
        self._local = LocalTransport()

    def open(
        self, host: Host, command: str, place: Place, ssh_config: Mapping[str, str], *, is_direct: bool
    ) -> Channel | None:
        """Start `command` here if a login to `host` would lead here; return None if it takes a login.

        The other arguments are those of `is_meant`.
        """
        return self.start(host, command) if self.is_meant(place, ssh_config, is_direct=is_direct) else None

    def is_meant(self, place: Place, ssh_config: Mapping[str, str], *, is_direct: bool) -> bool:
        """Tell whether a login would lead here: the address is this machine's, and known_hosts has no other key for it.

        place, ssh_config: where the login goes, and the options that ssh_config sets for it.
        is_direct: the login needs no jump host or ProxyCommand; behind one the address may be another machine's.
        """
        if not is_direct or not is_this_machine(place.host, place.port, place.user):
            return False
        doubt = find_objection(place, ssh_config)
        if doubt is not None and self._on_doubt is not None:
            self._on_doubt(place.name, doubt.text, doubt.fix)
        return doubt is None

    def start(self, host: Host, command: str) -> Channel:
        """Start `command` here without a login, for a host that `is_meant` found to be this machine."""
        if self._on_local is not None:
            self._on_local(host.name)
        return self._local.open(host, command, timeout_s=math.inf)  # it waits for nothing


def is_this_machine(hostname: str, port: int, user: str) -> bool:
    """Tell whether `user@hostname:port` is an address of this machine, port 22, and the user who runs `launch`."""
    if port != SSH_PORT or user != _own_user():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, SSH_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)  # sends nothing; to one of its own addresses the kernel sends from that very address
            source: str = sock.getsockname()[0]
            return source == place[0] or (source.startswith("127.") and str(place[0]).startswith("127."))
    return False


def _own_user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return None
