"""Host keys as Fabric checks them: by the lines of known_hosts that name the host itself. All others are left to ssh.

Fabric accepts any host key. paramiko's HostKeys compares each line that it loads with all before it, gives up a whole
file for one broken key, and ignores markers, so that a revoked key would count as a known one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko

from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.known_hosts import find_files
from launcher.transports.ssh.packet_limits import BoundedPacketizer

_HASHED = "|1|"
_FOR_SSH = "@"  # where the index has what only ssh can judge
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
# Encrypts and authenticates in one call, and OpenSSH prefers it too; paramiko's first choice, CTR with an HMAC, takes
# 1.4 times the CPU.
_CIPHER = "aes128-gcm@openssh.com"

_Keys = Sequence[tuple[str, str]]  # the type of each, and its bytes in base64


class NeedsSsh(paramiko.SSHException):
    """A login needs something that only ssh can do, which the message names."""


class UnknownHostKey(paramiko.SSHException):
    """No line of known_hosts has a key under the host's own name."""


class ChangedHostKey(paramiko.SSHException):
    """The host shows another key than those in known_hosts; the message is its fingerprint."""


class KnownHosts:
    """The known_hosts files, each read for all hosts, and again when it has changed; threads that connect share it."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[object, Mapping[str, _Keys]]] = {}
        self._lock = threading.Lock()

    def keys_of(self, place: Destination, settings: Mapping[str, Any]) -> _Keys:
        """Return the keys of a host; raise NeedsSsh or UnknownHostKey. settings: what ssh_config sets for it."""
        name = place.known_name.lower()
        found: list[tuple[str, str]] = []
        for path in find_files(settings):
            keys = self._read(path)
            if _FOR_SSH in keys:
                raise NeedsSsh(f"a line of {path} that begins with @ or !")
            hashed = (known for known in keys if known.startswith(_HASHED) and _is_hash_of(known, name))
            found += [key for known in (name, *hashed) for key in keys.get(known, ())]
        if not found:
            raise UnknownHostKey(f"no key for {name}")
        return found

    def guard(self, connection: fabric.Connection, place: Destination, settings: Mapping[str, Any]) -> None:
        """Let a connection to `place` open only if the host has one of its known keys; raise as keys_of does."""
        known = self.keys_of(place, settings)
        connection.client.set_missing_host_key_policy(_Policy(known))
        connection.connect_kwargs["transport_factory"] = partial(_make_transport, known)

    def _read(self, path: Path) -> Mapping[str, _Keys]:
        with self._lock:
            try:
                version: object = path.stat().st_mtime_ns
                if path not in self._files or self._files[path][0] != version:
                    self._files[path] = version, _index(path.read_text("utf-8", "replace"))
                return self._files[path][1]
            except (OSError, ValueError):  # there is none, or it can't be read
                return {}


def _index(text: str) -> Mapping[str, _Keys]:
    """Return the keys by the names for which a file has them; a pattern, too, is found only as it is written."""
    found: dict[str, list[tuple[str, str]]] = {}
    for words in map(str.split, text.splitlines()):
        if words and words[0].startswith(("@", "!")):
            found[_FOR_SSH] = []
        if len(words) > 2:
            names = [words[0]] if words[0].startswith(_HASHED) else words[0].lower().split(",")
            for name in names:
                found.setdefault(_FOR_SSH if name.startswith("!") else name, []).append((words[1], words[2]))
    return found


def _is_hash_of(hashed: str, name: str) -> bool:
    with contextlib.suppress(ValueError, AssertionError, IndexError):  # it isn't whole
        return paramiko.HostKeys.hash_host(name, hashed) == hashed
    return False


class _Policy(paramiko.MissingHostKeyPolicy):
    """Compares one host's key; paramiko gets no known keys, so that it asks this policy about each."""

    def __init__(self, known: _Keys) -> None:
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if key.get_base64() not in {known for _, known in self._known}:
            raise ChangedHostKey(key.fingerprint)


def _make_transport(known: _Keys, sock: Any, **settings: Any) -> paramiko.Transport:
    """Ask the server for a key of a type that is known; and for the cipher that takes the least CPU."""
    transport = paramiko.Transport(sock, packetizer_class=BoundedPacketizer, **settings)
    options = transport.get_security_options()
    options.ciphers = tuple(dict.fromkeys([_CIPHER, *options.ciphers]))
    kinds = {kind for kind, _ in known}
    kinds.update(_RSA_SIGNATURES if "ssh-rsa" in kinds else ())
    options.key_types = [kind for kind in options.key_types if kind in kinds]
    return transport
