"""Hosts that turn out to be this machine: their commands are started here, without SSH.

DNS, /etc/hosts or a forwarded port can make another machine's name lead here. SSH would detect that by the host key,
so this machine's own host keys are compared with those that known_hosts has for the name before a command starts here.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.hosts.host import SSH_PORT, Host
from launcher.transports.base import Channel
from launcher.transports.process_channel import LocalTransport
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.known_hosts import find_files, find_unclear
from launcher.transports.ssh.openssh_config import is_file

_FOLDER = Path("/etc/ssh")
_AUTHORITY, _REVOKED = "@cert-authority", "@revoked"
_FOR_A_LOGIN = "only a login can compare its host key"
_OTHER_KEY = "known_hosts has a different host key for it"
_NO_KEY = "this machine has no /etc/ssh/ssh_host_*_key.pub to compare"


class ThisMachine:
    """Decides for every transport over SSH whether a host is this machine, and starts commands for it.

    A host is this machine only if a login to it would lead here in every respect: address, port 22, user, and no other
    host key in known_hosts. If host keys contradict it, SSH is used, and `TransportSettings.say` gets the reason.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._say = settings.say
        self._local = LocalTransport()

    def open(
        self, host: Host, command: str, place: Destination, ssh_config: Mapping[str, str], *, is_direct: bool
    ) -> Channel | None:
        """Start `command` here if a login to `host` would lead here; return None if it takes a login.

        The other arguments are those of `is_meant`.
        """
        return self.start(host, command) if self.is_meant(place, ssh_config, is_direct=is_direct) else None

    def is_meant(self, place: Destination, ssh_config: Mapping[str, str], *, is_direct: bool) -> bool:
        """Tell whether a login would lead here: the address is this machine's, and known_hosts has no other key for it.

        place, ssh_config: where the login goes, and the options that ssh_config sets for it.
        is_direct: the login needs no jump host or ProxyCommand; behind one the address may be another machine's.
        """
        if not is_direct or not is_this_machine(place.host, place.port, place.user):
            return False
        doubt = find_doubt(place, ssh_config)
        if doubt:
            self._say(f"{place.name} has this machine's address, but {doubt}; connecting over SSH")
        return not doubt

    def start(self, host: Host, command: str) -> Channel:
        """Start `command` here without a login, for a host that `is_meant` found to be this machine."""
        self._say(f"{host.name} is this machine; not using SSH")
        return self._local.open(host, command, timeout_s=math.inf)  # it waits for nothing


def is_this_machine(hostname: str, port: int, user: str) -> bool:
    """Tell whether `user@hostname:port` is an address of this machine, port 22, and the user who runs `launch`."""
    if port != SSH_PORT or user != own_user():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, SSH_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)  # sends nothing; to one of its own addresses the kernel sends from that very address
            source: str = sock.getsockname()[0]
            return source == place[0] or (source.startswith("127.") and str(place[0]).startswith("127."))
    return False


def own_user() -> str | None:
    """Return the user who runs `launch`; None for a user id without a name, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


def find_doubt(place: Destination, settings: Mapping[str, str]) -> str:
    """Return why a host may be another machine although its address is this one's; "" if no key contradicts that.

    place, settings: the destination of its login, and the options that ssh_config sets for it.
    """
    if settings.get("knownhostscommand", "none") != "none" or find_unclear(settings):
        return _FOR_A_LOGIN
    try:
        lines = [*_find_lines(place.known_name, find_files(settings))]
    except OSError:
        return _FOR_A_LOGIN
    revoked = {key for marker, key in lines if marker == _REVOKED}
    known = {key for marker, key in lines if not marker} - revoked
    own = set(_read_own())
    if known & own or all(marker == _REVOKED for marker, _ in lines):
        return ""
    if any(marker == _AUTHORITY for marker, _ in lines):
        return _FOR_A_LOGIN
    return _OTHER_KEY if own else _NO_KEY


def _find_lines(name: str, files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield marker and key of each line about a name, as ssh-keygen finds them; raise OSError if there is none."""
    for path in filter(is_file, files):
        argv = ["ssh-keygen", "-F", name, "-f", str(path)]
        found = subprocess.run(argv, capture_output=True, check=False).stdout
        for words in map(str.split, found.decode("utf-8", "replace").splitlines()):
            marker = words.pop(0) if words[0].startswith("@") else ""
            if words[0] != "#":  # its own words about the line that follows
                yield marker, words[2]


def _read_own() -> Iterator[str]:
    """Yield this machine's host keys."""
    for path in _FOLDER.glob("ssh_host_*_key*.pub"):
        with contextlib.suppress(OSError):
            yield from path.read_text("utf-8", "replace").split()[1:2]
