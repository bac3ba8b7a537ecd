"""Host keys: checked against the known_hosts files that ssh_config names, as OpenSSH does.

Fabric never loads them and accepts every key, so a changed key would go unnoticed.
paramiko's own reader supports no wildcards. A host of which a line is marked is left to ssh (see `openssh_needs`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko

from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.known_hosts import KnownKey, KnownKeys, append, find_files, fingerprint, read
from launcher.transports.ssh.packet_limits import BoundedPacketizer

_ACCEPT_ANY = ("no", "off", "false")
_ACCEPT_NEW = "accept-new"
# Encrypts and authenticates in one call, and OpenSSH prefers it too; paramiko's first choice, CTR with an HMAC, takes
# 1.4 times the CPU.
_CIPHER = "aes128-gcm@openssh.com"


class HostKeyRefused(paramiko.SSHException):
    """The host shows a key that can't be trusted."""

    def __init__(self, kind: str, key: paramiko.PKey) -> None:
        super().__init__(f"{kind}: {key.get_name()} {fingerprint(key.asbytes())}")
        self.fingerprint = fingerprint(key.asbytes())
        self.kind_and_fingerprint = f"{key.get_name()} {self.fingerprint}"


class UnknownHostKey(HostKeyRefused):
    """known_hosts has no key of this host."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__("unknown", key)


class ChangedHostKey(HostKeyRefused):
    """known_hosts has a different key for this host."""

    def __init__(self, key: paramiko.PKey, known: KnownKey) -> None:
        super().__init__("changed", key)
        self.known_fingerprint = fingerprint(known.blob)


class UnrecordedHostKey(HostKeyRefused):
    """The host's new key could not be recorded, so it isn't accepted: any key would be new again next time."""

    def __init__(self, key: paramiko.PKey, path: Path, error: OSError) -> None:
        super().__init__("not recorded", key)
        self.reason = f"{path}: {error.strerror}"


class KnownHosts:
    """The known_hosts files, each read for all hosts, and again when it has changed; threads that connect share it."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[object, KnownKeys]] = {}
        self._lock = threading.RLock()

    def lines_about(self, place: Destination, settings: Mapping[str, Any]) -> tuple[list[KnownKey], list[KnownKey]]:
        """Return the lines about the port of a host, and those about its usual port if that is another one.

        settings: what ssh_config sets for it.
        """
        host, name = place.alias or place.host, place.known_name
        files = [self._read(path) for path in find_files(settings)]
        about = [line for keys in files for line in keys.about(name)]
        return about, [line for keys in files for line in keys.about(host)] if name != host else []

    def guard(
        self,
        connection: fabric.Connection,
        place: Destination,
        settings: Mapping[str, Any],
        on_untrusted: Callable[[], None],
    ) -> None:
        """Make the connection to `place` check its host's key when it opens; settings: what ssh_config sets for it.

        on_untrusted: called if ssh_config accepts any key and this one isn't trusted; the host must get no password.
        """
        about, usual = self.lines_about(place, settings)
        # As in OpenSSH, a host's key for port 22 is accepted at a port for which no key is known.
        known = about or usual
        wish = str(settings.get("stricthostkeychecking", "ask")).lower()
        own = [path for path in find_files(settings) if str(path) == place.known_file]
        policy = _Policy(
            known, is_changed=bool(about), on_untrusted=on_untrusted if wish in _ACCEPT_ANY else None,
            on_new=partial(self._record, own[0], place.known_name) if own and wish == _ACCEPT_NEW else None,
        )  # fmt: skip
        connection.client.set_missing_host_key_policy(policy)
        allowed = str(settings.get("hostkeyalgorithms", "")).split(",")
        connection.connect_kwargs["transport_factory"] = partial(_make_transport, known, allowed)

    def _read(self, path: Path) -> KnownKeys:
        with self._lock:
            try:
                state = path.stat()
                version: object = (state.st_ino, state.st_size, state.st_mtime_ns)
            except OSError:
                version = None
            known = self._files.get(path)
            if known is None or known[0] != version:
                known = self._files[path] = version, read(path)
            return known[1]

    def _record(self, path: Path, name: str, key: paramiko.PKey) -> None:
        """Record a key; raise ChangedHostKey if a different one was recorded since the login began.

        That happens with a jump host of many hosts: their threads look for its key before the first one records it.
        """
        new = KnownKey(name, key.get_name(), key.asbytes(), None)
        with self._lock:
            known = [line for line in self._read(path).about(name) if line.marker is None]
            if not known:
                try:
                    append(path, new)
                except OSError as error:
                    raise UnrecordedHostKey(key, path, error) from error
        if known and all(line.blob != new.blob for line in known):
            raise ChangedHostKey(key, known[0])


class _Policy(paramiko.MissingHostKeyPolicy):
    """Decides about one host's key; paramiko gets no known keys, so that it asks this policy about each."""

    def __init__(
        self, known: Sequence[KnownKey], *, is_changed: bool, on_untrusted: Callable[[], None] | None,
        on_new: Callable[[paramiko.PKey], None] | None,
    ) -> None:  # fmt: skip
        """is_changed: another key than the known ones is a changed one, and not one of another port."""
        self._known = known
        self._is_changed = is_changed
        self._on_untrusted = on_untrusted
        self._on_new = on_new

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if any(line.blob == key.asbytes() for line in self._known):
            return
        if self._is_changed:
            if self._on_untrusted is None:
                raise ChangedHostKey(key, self._known[0])
            self._on_untrusted()
        elif self._on_new is not None:
            self._on_new(key)
        elif self._on_untrusted is None:
            raise UnknownHostKey(key)


def _make_transport(
    lines: Iterable[KnownKey], allowed: Sequence[str], sock: Any, **settings: Any
) -> paramiko.Transport:
    """Ask the server for a key that can be checked, of a known type; and for the cipher that takes the least CPU.

    allowed: HostKeyAlgorithms of ssh_config, if they are known.
    """
    transport = paramiko.Transport(sock, packetizer_class=BoundedPacketizer, **settings)
    options = transport.get_security_options()
    options.ciphers = tuple(dict.fromkeys([_CIPHER, *options.ciphers]))
    first: list[str] = []
    for line in lines:
        first += ["rsa-sha2-512", "rsa-sha2-256"] if line.kind == "ssh-rsa" else [line.kind]
    known = transport._key_info  # type: ignore[attr-defined] # setting one that it doesn't have is an error
    kinds = [kind for kind in dict.fromkeys([*first, *options.key_types]) if kind in known]
    options.key_types = [kind for kind in kinds if kind in allowed] if allowed != [""] else kinds
    return transport
