"""Private keys, public keys and certificates in files, in every format that OpenSSH writes."""

from __future__ import annotations

import base64
import binascii
import threading
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from paramiko.pkey import PublicBlob

CERTIFICATE = "-cert-v01@openssh.com"
_HEADER = b"openssh-key-v1\0"


class UnusableKey(paramiko.SSHException):
    """A key that paramiko can't sign with: it is in a FIDO token, or of a type that paramiko doesn't support."""


class Secrets:
    """What the user has typed once for all hosts: a password, and passphrases of keys, with the keys that they unlock.

    Threads that log in to hosts share it; each key is read once.
    """

    def __init__(self, password: str | None = None) -> None:
        self.password = password
        self._passphrases: dict[Path, bytes] = {}
        self._keys: dict[Path, paramiko.PKey] = {}
        self._lock = threading.Lock()

    def unlock(self, path: Path, passphrase: str) -> bool:
        """Keep the passphrase of a key and return True; return False if it is wrong."""
        self._passphrases[path] = passphrase.encode()
        try:
            self.load(path)
        except paramiko.SSHException:
            del self._passphrases[path]
        return path in self._passphrases

    def is_locked(self, path: Path) -> bool:
        """Tell whether a key needs a passphrase that has not been typed yet."""
        try:
            self.load(path)
        except paramiko.PasswordRequiredException:
            return True
        except paramiko.SSHException:  # it can't be used at all
            pass
        return False

    def load(self, path: Path) -> paramiko.PKey:
        """Read a private key, once for all hosts; raise PasswordRequiredException, or UnusableKey."""
        with self._lock:
            if path not in self._keys:
                self._keys[path] = _load_private(path, self._passphrases.get(path))
            return self._keys[path]


def _load_private(path: Path, passphrase: bytes | None) -> paramiko.PKey:
    try:
        # paramiko passes the passphrase unchanged to cryptography, which takes bytes.
        return paramiko.PKey.from_path(path, passphrase)  # type: ignore[arg-type]
    except TypeError:  # what cryptography raises for a missing passphrase
        raise paramiko.PasswordRequiredException(f"{path} has a passphrase") from None
    except (UnsupportedAlgorithm, paramiko.UnknownKeyType, ValueError, OSError) as error:  # type: ignore[attr-defined]
        raise UnusableKey(f"{path}: {error}") from None


def read_public(path: Path) -> bytes | None:
    """Return a private key's public half in the format of the protocol, without a passphrase; None if it isn't known.

    `path` may also name a public key whose private half is in an agent.
    """
    for file in (path.with_name(f"{path.name}.pub"), path):
        found = _read_line(file)
        if found is not None:
            return found.key_blob
    try:
        text = path.read_text("ascii", "replace")
        data = base64.b64decode("".join(line for line in text.splitlines() if not line.startswith("-")))
    except (OSError, binascii.Error):
        return None
    if not data.startswith(_HEADER):
        return None  # an older format, which has no public half
    message = paramiko.Message(data[len(_HEADER) :])
    for _ in ("cipher", "key derivation", "its options"):
        message.get_string()
    return message.get_binary() if message.get_int() == 1 else None


def read_certificate(path: Path) -> tuple[bytes, PublicBlob] | None:
    """Return the public key that a certificate is for, and the certificate; None if the file holds none."""
    found = _read_line(path)
    return (plain_public(found.key_blob), found) if found is not None and CERTIFICATE in found.key_type else None


def plain_public(blob: bytes) -> bytes:
    """Return the public key that a certificate is for; a public key without one is returned as it is."""
    kind = paramiko.Message(blob).get_text()
    if CERTIFICATE not in kind:
        return blob
    line = f"{kind} {base64.b64encode(blob).decode()}".encode()
    try:
        identity = serialization.load_ssh_public_identity(line)
    except (ValueError, UnsupportedAlgorithm):
        return blob
    assert isinstance(identity, serialization.SSHCertificate)  # by its type
    openssh = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return base64.b64decode(identity.public_key().public_bytes(*openssh).split()[1])


def _read_line(path: Path) -> PublicBlob | None:
    try:
        return PublicBlob.from_string(path.read_text("utf-8", "replace"))
    except (OSError, ValueError, binascii.Error, paramiko.SSHException):
        return None
