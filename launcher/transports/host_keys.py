"""Host keys: checked against the known_hosts files that ssh_config names, as OpenSSH does.

Fabric never loads them and accepts every key, so a changed key would pass in silence.
paramiko's own reader knows neither wildcards, nor authorities, nor what is revoked.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from launcher.transports.key_files import CERTIFICATE
from launcher.transports.known_files import find_doubt, read_paths
from launcher.transports.known_hosts import AUTHORITY, REVOKED, KnownKey, fingerprint, matches, parse_known_hosts
from launcher.transports.packets import BoundedPacketizer

_DEFAULT_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_ACCEPT_ANY = ("no", "off", "false")
_ACCEPT_NEW = "accept-new"
# Seals a packet in one call, and OpenSSH prefers it too; paramiko begins with CTR and an HMAC, at 1.4 times the CPU.
_CIPHER = "aes128-gcm@openssh.com"
_OPENSSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


class HostKeyRefused(paramiko.SSHException):
    """The host shows a key that is not to be trusted."""

    def __init__(self, kind: str, key: paramiko.PKey) -> None:
        super().__init__(f"{kind}: {key.get_name()} {fingerprint(key.asbytes())}")
        self.fingerprint = fingerprint(key.asbytes())
        self.kind_and_fingerprint = f"{key.get_name()} {self.fingerprint}"


class UnknownHostKey(HostKeyRefused):
    """The host has no key in known_hosts; doubt: why none can be written there."""

    def __init__(self, key: paramiko.PKey, doubt: str) -> None:
        super().__init__("unknown", key)
        self.doubt = doubt


class RevokedHostKey(HostKeyRefused):
    """known_hosts says that nobody may use this key."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__("revoked", key)


class ChangedHostKey(HostKeyRefused):
    """known_hosts has another key of this host."""

    def __init__(self, key: paramiko.PKey, known: KnownKey) -> None:
        super().__init__("changed", key)
        self.known_fingerprint = fingerprint(known.blob)


class KnownHosts:
    """The known_hosts files, each read once for all hosts."""

    def __init__(self, *, accept_new: bool) -> None:
        self._accept_new = accept_new
        self._files: dict[Path, list[KnownKey]] = {}
        self._lock = threading.Lock()

    def guard(self, connection: fabric.Connection, on_untrusted: Callable[[], None]) -> None:
        """Let the connection check its host's key; on_untrusted: a changed one is borne with, but gets no password."""
        settings = connection.ssh_config
        own = read_paths(settings.get("userknownhostsfile", _DEFAULT_FILES))
        alias = settings.get("hostkeyalias")
        host = alias or connection.host
        name = host if alias or connection.port == 22 else f"[{host}]:{connection.port}"
        paths = own + read_paths(settings.get("globalknownhostsfile", _DEFAULT_GLOBAL_FILES))
        lines = [line for path in paths for line in self._read(path)]
        about = [line for line in lines if line.is_of(name)]
        # A key that is known of the host alone is good for each of its ports.
        elsewhere = [line for line in lines if line.is_of(host) and line not in about]
        doubt = find_doubt(own[0]) if own else ""
        can_write = bool(own) and not doubt
        wish = str(settings.get("stricthostkeychecking", "ask")).lower()
        policy = _Policy(
            host, name, about, elsewhere, doubt,
            on_untrusted=on_untrusted if wish in _ACCEPT_ANY else None,
            on_new=partial(self._write, own[0]) if can_write and (self._accept_new or wish == _ACCEPT_NEW) else None,
        )  # fmt: skip
        connection.client.set_missing_host_key_policy(policy)
        connection.connect_kwargs["transport_factory"] = partial(_make_transport, [*about, *elsewhere])

    def _read(self, path: Path) -> list[KnownKey]:
        with self._lock:
            if path not in self._files:
                try:
                    self._files[path] = list(parse_known_hosts(path.read_text("utf-8", "replace")))
                except (OSError, ValueError):  # a file that is not there, or that can't be, knows no host
                    self._files[path] = []
            return self._files[path]

    def _write(self, path: Path, name: str, key: paramiko.PKey) -> None:
        new = KnownKey(name, key.get_name(), key.asbytes(), None)
        known = self._read(path)
        with self._lock:
            # Many hosts have one gateway, and each has looked before the first of them came here.
            for line in known:
                if line.marker is None and line.is_of(name):
                    if line.blob != new.blob:
                        raise ChangedHostKey(key, line)
                    return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{name} {key.get_name()} {key.get_base64()}\n")
            known.append(new)


class _Policy(paramiko.MissingHostKeyPolicy):
    """Decides about one host's key; paramiko is given no keys, so that it asks here about each."""

    def __init__(
        self, host: str, name: str, about: Sequence[KnownKey], elsewhere: Sequence[KnownKey], doubt: str, *,
        on_untrusted: Callable[[], None] | None, on_new: Callable[[str, paramiko.PKey], None] | None,
    ) -> None:  # fmt: skip
        self._host = host
        self._name = name
        self._about = about
        self._elsewhere = elsewhere
        self._doubt = doubt
        self._on_untrusted = on_untrusted
        self._on_new = on_new

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        lines = [*self._about, *self._elsewhere]
        certificate = key.public_blob.key_blob if key.public_blob is not None else None
        signer = read_signer(certificate, self._host) if certificate else None
        shown = [key.asbytes(), *([signer] if signer else [])]
        if any(line.marker == REVOKED and line.blob in shown for line in lines):
            raise RevokedHostKey(key)
        if signer is not None and any(line.marker == AUTHORITY and line.blob == signer for line in lines):
            return
        if any(line.marker is None and line.blob == key.asbytes() for line in lines):
            return
        known = next((line for line in self._about if line.marker is None), None)
        if known is not None:
            if self._on_untrusted is None:
                raise ChangedHostKey(key, known)
            self._on_untrusted()
        elif self._on_new is not None:
            self._on_new(self._name, key)
        elif self._on_untrusted is None:
            raise UnknownHostKey(key, self._doubt)


def read_signer(certificate: bytes, host: str) -> bytes | None:
    """Return the public key that has signed a host's certificate; None where that is not good for this host now."""
    kind = paramiko.Message(certificate).get_text()
    try:
        identity = serialization.load_ssh_public_identity(f"{kind} {base64.b64encode(certificate).decode()}".encode())
        assert isinstance(identity, serialization.SSHCertificate)  # by its type
        identity.verify_cert_signature()
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return None
    principals = [name.decode("utf-8", "replace").lower() for name in identity.valid_principals]
    is_good = (
        identity.type is serialization.SSHCertificateType.HOST
        and identity.valid_after <= time.time() < identity.valid_before
        and not identity.critical_options
        and (not principals or any(matches(host.lower(), principal) for principal in principals))
    )
    return base64.b64decode(identity.signature_key().public_bytes(*_OPENSSH).split()[1]) if is_good else None


def _make_transport(lines: Iterable[KnownKey], sock: Any, **settings: Any) -> paramiko.Transport:
    """Ask the server for a key that can be checked: a certificate where an authority is known, or a known type.

    And for the quickest cipher.
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
    known = transport._key_info  # type: ignore[attr-defined] # setting one that it has not got is an error
    options.key_types = [kind for kind in dict.fromkeys([*first, *usual]) if kind in known]
    return transport
