"""Hosts that turn out to be this machine: they need no SSH, where nothing speaks against it."""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Callable, Mapping

from launcher.hosts.host import Host
from launcher.transports.base import Channel
from launcher.transports.local import LocalTransport
from launcher.transports.ssh.failures import Place
from launcher.transports.ssh.own_host_keys import find_objection

SSH_PORT = 22


class ThisMachine:
    """Knows whether a login would end here, and opens such a host without one."""

    def __init__(
        self,
        on_local: Callable[[str], None] | None = None,
        on_doubt: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """on_local: told of each host that runs here without SSH; on_doubt: of one that doesn't, why and what helps."""
        self._on_local = on_local
        self._on_doubt = on_doubt
        self._local = LocalTransport()

    def is_meant(self, place: Place, settings: Mapping[str, str]) -> bool:
        """Tell whether a login would end here: the address is this machine's, and known_hosts has no other key for it.

        place, settings: where the login goes, and what ssh_config says of it; nothing stands between.
        """
        if not is_this_machine(place.host, place.port, place.user):
            return False
        doubt = find_objection(place, settings)
        if doubt is not None and self._on_doubt is not None:
            self._on_doubt(place.name, doubt.text, doubt.fix)
        return doubt is None

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        """Start `command` here in the place of a login, and tell of it."""
        if self._on_local is not None:
            self._on_local(host.name)
        return self._local.open(host, command, timeout_s)


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
