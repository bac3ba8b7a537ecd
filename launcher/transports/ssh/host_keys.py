"""Host keys: checked against the known_hosts files that ssh_config names, as OpenSSH does.

Fabric never loads them and accepts every key, so a changed key would go unnoticed.
paramiko's own reader supports neither wildcards, nor certificate authorities, nor revoked keys.
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
from launcher.transports.ssh.identities import CERTIFICATE
from launcher.transports.ssh.known_hosts import (
    AUTHORITY,
    KnownHostsFile,
    KnownKey,
    KnownKeys,
    fingerprint,
    is_revoked,
    is_vouched_for,
    read_signer,
)
from launcher.transports.ssh.known_hosts_paths import find_doubt, find_files
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
    """known_hosts has no key of this host; doubt: why none can be recorded there."""

    def __init__(self, key: paramiko.PKey, doubt: str) -> None:
        super().__init__("unknown", key)
        self.doubt = doubt


class RevokedHostKey(HostKeyRefused):
    """known_hosts marks this key as revoked."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__("revoked", key)


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
    """The known_hosts files, each read once for all hosts; threads that connect share it."""

    def __init__(self) -> None:
        self._files: dict[Path, KnownHostsFile] = {}
        self._lock = threading.Lock()

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
        own, others = find_files(settings, place)
        host, name = place.alias or place.host, place.known_name
        files = [self._read(path) for path in own + others]
        about = [line for keys in files for line in keys.about(name)]
        elsewhere = [line for keys in files for line in keys.about(host)] if name != host else []
        doubt = find_doubt(own[0]) if own else ""
        can_write = bool(own) and not doubt
        wish = str(settings.get("stricthostkeychecking", "ask")).lower()
        policy = _Policy(
            host, name, about, elsewhere, doubt,
            on_untrusted=on_untrusted if wish in _ACCEPT_ANY else None,
            on_new=partial(self._write, own[0]) if can_write and wish == _ACCEPT_NEW else None,
        )  # fmt: skip
        connection.client.set_missing_host_key_policy(policy)
        connection.connect_kwargs["transport_factory"] = partial(_make_transport, policy.lines)

    def _read(self, path: Path) -> KnownKeys:
        with self._lock:
            if path not in self._files:
                self._files[path] = KnownHostsFile.read(path)
            return self._files[path].keys

    def _write(self, path: Path, name: str, key: paramiko.PKey) -> None:
        """Record a key; raise ChangedHostKey if a different one was recorded since the files were read.

        That happens with a jump host of many hosts: their threads look for its key before the first one records it.
        """
        self._read(path)
        with self._lock:
            try:
                known = self._files[path].record(KnownKey(name, key.get_name(), key.asbytes(), None))
            except OSError as error:
                raise UnrecordedHostKey(key, path, error) from error
        if known is not None and known.blob != key.asbytes():
            raise ChangedHostKey(key, known)


class _Policy(paramiko.MissingHostKeyPolicy):
    """Decides about one host's key; paramiko gets no known keys, so that it asks this policy about each."""

    def __init__(
        self, host: str, name: str, about: Sequence[KnownKey], elsewhere: Sequence[KnownKey], doubt: str, *,
        on_untrusted: Callable[[], None] | None, on_new: Callable[[str, paramiko.PKey], None] | None,
    ) -> None:  # fmt: skip
        self._host = host
        self._name = name
        self._about = about
        self._known = next((line for line in about if line.marker is None), None)
        # As in OpenSSH, a host's key for port 22 is accepted at a port for which no key is known. OpenSSH 9.2 does so
        # even for a port with a known key if the server shows a certificate of an unknown authority; not here.
        self._elsewhere = [line for line in elsewhere if line.marker is not None or self._known is None]
        self._doubt = doubt
        self._on_untrusted = on_untrusted
        self._on_new = on_new

    @property
    def lines(self) -> list[KnownKey]:
        """Return all lines of known_hosts with which a key may be compared."""
        return [*self._about, *self._elsewhere]

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        certificate = key.public_blob.key_blob if key.public_blob is not None else None
        signer = read_signer(certificate, self._host) if certificate else None
        for lines in (self._about, self._elsewhere):
            if is_revoked(lines, [key.asbytes(), *([signer] if signer else [])]):
                raise RevokedHostKey(key)
            if is_vouched_for(lines, key.asbytes(), signer):
                return
        if self._known is not None:
            if self._on_untrusted is None:
                raise ChangedHostKey(key, self._known)
            self._on_untrusted()
        elif self._on_new is not None:
            self._on_new(self._name, key)
        elif self._on_untrusted is None:
            raise UnknownHostKey(key, self._doubt)


def _make_transport(lines: Iterable[KnownKey], sock: Any, **settings: Any) -> paramiko.Transport:
    """Ask the server for a key that can be checked: a certificate if an authority is known, then keys of known types.

    Also ask for the cipher that takes the least CPU time.
    """
    transport = paramiko.Transport(sock, packetizer_class=BoundedPacketizer, **settings)
    options = transport.get_security_options()
    options.ciphers = tuple(dict.fromkeys([_CIPHER, *options.ciphers]))
    usual = list(options.key_types)
    first: list[str] = []
    for line in lines:
        if line.marker == AUTHORITY:
            first = [f"{kind}{CERTIFICATE}" for kind in usual] + first
        elif line.marker is None:
            first += ["rsa-sha2-512", "rsa-sha2-256"] if line.kind == "ssh-rsa" else [line.kind]
    known = transport._key_info  # type: ignore[attr-defined] # setting one that it doesn't have is an error
    options.key_types = [kind for kind in dict.fromkeys([*first, *usual]) if kind in known]
    return transport
