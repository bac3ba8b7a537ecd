"""This machine, without SSH: the same command line, in a session of its own."""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Callable, Mapping, Sequence

from launcher.hosts.host import Host
from launcher.transports.own_host_keys import find_objection
from launcher.transports.processes import ProcessChannel, start_process
from launcher.transports.ssh_failures import Place

SSH_PORT = 22


class LocalTransport:
    """Runs the node's side on this machine."""

    name = "local"
    is_terse = False

    def __init__(
        self,
        on_local: Callable[[str], None] | None = None,
        on_doubt: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """on_local: told of each host that runs here without SSH; on_doubt: of one that doesn't, why and what helps."""
        self._on_local = on_local
        self._on_doubt = on_doubt

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

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        if self._on_local is not None:
            self._on_local(host.name)
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
