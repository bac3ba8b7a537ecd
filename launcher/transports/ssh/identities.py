"""What a login offers, in OpenSSH's order: keys that ssh_config names, an agent's keys, certificates, a password.

Keys and certificates in files may have every format that OpenSSH writes. paramiko's own login ignores the agent under
`IdentitiesOnly yes`, even for keys that ssh_config names.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import copy
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from launcher.transports.ssh.failures import WOULD_NOT_SIGN
from launcher.transports.ssh.mute_agents import find_socket

CERTIFICATE = "-cert-v01@openssh.com"
_HEADER = b"openssh-key-v1\0"
_DEFAULT_FILES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk")
_AGENT_TIMEOUT_S = 30.0


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
    for file in (_public_of(path), path):
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


def _public_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


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


class LoginRefused(paramiko.AuthenticationException):
    """The server has accepted nothing that was tried; the attributes say what that was, for the message."""

    def __init__(self, login: Login, wanted: Sequence[str]) -> None:
        """wanted: the methods that the server would accept, if it has named any."""
        super().__init__("login refused")
        self.tried = tuple(login.tried)
        self.locked = tuple(login.locked)
        self.unusable = tuple(login.unusable)
        self.has_declined = login.has_declined
        self.has_accepted = login.has_accepted
        self.wanted = tuple(wanted)


class HeldKey(AgentKey):
    """A key in an agent, which may decline to sign: the smart card was removed, or the user said no or didn't answer.

    paramiko would then end the connection. This class returns an empty signature instead, which the server refuses like
    a wrong key, so that the next key is tried.
    """

    has_declined = False

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:  # bytes, whatever its stub says
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError) as error:
            if isinstance(error, OSError):  # a late answer would be taken for the answer to the next request
                self.agent._conn.close()  # type: ignore[attr-defined]
            self.has_declined = True
            return b""


@dataclass(frozen=True, slots=True)
class Identity:
    """A key to offer, and its name in messages: its file, or its comment in the agent."""

    name: str
    key: paramiko.PKey


class Login:
    """How paramiko logs in to one host (its auth_strategy); `settings` are the options of ssh_config for the host.

    The lists grow while it tries: `tried` is what was offered, `locked` and `unusable` are keys that could not be.
    """

    def __init__(self, user: str, settings: Mapping[str, Any], secrets: Secrets) -> None:
        self.tried: list[str] = []
        self.locked: list[Path] = []  # their passphrases were not typed
        self.unusable: list[Path] = []
        self.has_declined = False  # an agent
        self.has_accepted = False  # the server, a key, but it wants more
        self._user = user
        self._settings = settings
        self._secrets = secrets
        self._password = secrets.password

    def keep_password(self) -> None:
        """Don't send the password: the host's key isn't trusted, so it may be another host."""
        self._password = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; raise LoginRefused, or the error that broke the connection."""
        with open_agent(self._settings.get("identityagent")) as agent_keys:
            wanted = self._try_keys(transport, agent_keys)
        if wanted is not None and self._password is not None and transport.is_active():
            self.tried.append("the password")
            wanted = _try(lambda password: transport.auth_password(self._user, password), self._password)
        if wanted is not None:
            raise LoginRefused(self, wanted or self._ask_methods(transport))

    def _try_keys(self, transport: paramiko.Transport, agent_keys: Sequence[AgentKey]) -> Sequence[str] | None:
        """Offer the keys; return None if one is accepted, else the methods that the server wants as well or instead."""
        if self._settings.get("pubkeyauthentication") in ("no", "false"):
            return ()
        also_wanted: Sequence[str] = ()
        for identity in self.identities(agent_keys):
            self.tried.append(identity.name)
            wanted = _try(lambda key: self._note(transport.auth_publickey(self._user, key)), identity.key)
            if isinstance(identity.key, HeldKey) and identity.key.has_declined:
                self.has_declined = True
                self.tried[-1] += WOULD_NOT_SIGN
            if wanted is None or (wanted and "publickey" not in wanted):
                return wanted
            also_wanted = wanted or also_wanted
            if not transport.is_active():  # too many tries
                break
        return also_wanted

    def _note(self, also_wanted: Sequence[str]) -> Sequence[str]:
        self.has_accepted = self.has_accepted or bool(also_wanted)
        return also_wanted

    def identities(self, agent_keys: Sequence[AgentKey]) -> Iterator[Identity]:
        """Yield the keys to offer: those of ssh_config that the agent holds, the agent's others, and those in files."""
        certificates = self._certificates()
        held = {plain_public(key.blob): key for key in agent_keys if CERTIFICATE not in key.get_name()}
        signed = [key for key in agent_keys if CERTIFICATE in key.get_name()]
        named = {path: read_public(path) for path in self._named}
        for path, public in named.items():
            if public in held or any(plain_public(key.blob) == public for key in signed):
                yield from _of_agent(f"{path} (agent)", public, held, signed, certificates)
        if self._settings.get("identitiesonly", "no") != "yes":
            others = {plain_public(key.blob): key.comment for key in agent_keys}
            for public, comment in others.items():
                if public not in named.values():
                    yield from _of_agent(f"{comment or 'a key'} (agent)", public, held, signed, certificates)
        for path, public in named.items():
            if public not in held and path.is_file():
                yield from self._of_file(path, public, certificates)

    def _of_file(
        self, path: Path, public: bytes | None, certificates: Mapping[bytes, Sequence[PublicBlob]]
    ) -> Iterator[Identity]:
        try:
            key = self._secrets.load(path)
        except paramiko.PasswordRequiredException:
            self.locked.append(path)
            return
        except UnusableKey:
            self.unusable.append(path)
            return
        for blob in (*certificates.get(key.asbytes(), ()), None):
            offered = copy.copy(key)
            offered.public_blob = blob
            yield Identity(_name(str(path), blob), offered)

    @property
    def files(self) -> list[Path]:
        """Return the private keys that ssh_config names, or else the default ones, as far as they exist."""
        return [path for path in self._named if path.is_file()]

    @property
    def _named(self) -> list[Path]:
        """Return these, and those of which only the public half is in a file, beside them: an agent may hold them."""
        names = self._settings.get("identityfile") or _DEFAULT_FILES
        paths = [Path(os.path.expandvars(name)).expanduser() for name in names if name != "none"]
        return [path for path in dict.fromkeys(paths) if path.is_file() or _public_of(path).is_file()]

    def _certificates(self) -> dict[bytes, list[PublicBlob]]:
        """Return certificates by their public key: those that ssh_config names, and those in files beside the keys."""
        named = self._settings.get("certificatefile", ())
        paths = [Path(name).expanduser() for name in named if name != "none"]
        paths += [path.with_name(f"{path.name}-cert.pub") for path in self._named]
        found: dict[bytes, list[PublicBlob]] = {}
        for path in dict.fromkeys(paths):
            if certificate := read_certificate(path):
                found.setdefault(certificate[0], []).append(certificate[1])
        return found

    def _ask_methods(self, transport: paramiko.Transport) -> Sequence[str]:
        """Return the methods that the server would accept; a refused login doesn't always name them."""
        try:
            transport.auth_none(self._user)
        except paramiko.BadAuthenticationType as error:
            return error.allowed_types
        except (paramiko.SSHException, EOFError, OSError):
            pass
        return ()


def locked_keys(settings: Mapping[str, Any], secrets: Secrets) -> list[Path]:
    """Return the keys for which to ask for a passphrase: no agent holds them.

    A default key counts only if every key is locked and the agent is empty: otherwise the login may succeed without it.
    """
    with open_agent(settings.get("identityagent")) as agent_keys:
        held = {plain_public(key.blob) for key in agent_keys}
    login = Login("", settings, secrets)
    locked = [path for path in login.files if read_public(path) not in held and secrets.is_locked(path)]
    is_alone = not held and len(locked) == len(login.files)
    defaults = [Path(name).expanduser() for name in _DEFAULT_FILES]
    return [path for path in locked if is_alone or path not in defaults]


def _try(log_in: Any, secret: Any) -> Sequence[str] | None:
    """Return None if the login worked; else the methods that the server wants instead, empty if it doesn't say."""
    try:
        wanted: Sequence[str] = log_in(secret)  # not empty: it was accepted, and another method is wanted as well
    except paramiko.BadAuthenticationType as error:
        return error.allowed_types
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error).lower():
            raise
        return ()
    return wanted or None


def _of_agent(
    name: str,
    public: bytes | None,
    held: Mapping[bytes, AgentKey],
    signed: Sequence[AgentKey],
    certificates: Mapping[bytes, Sequence[PublicBlob]],
) -> Iterator[Identity]:
    """Yield a key of an agent with each of the agent's certificates, with each of those in files, and without one."""
    assert public is not None  # callers have found the key by it
    key = held.get(public)
    for certified in signed:
        if plain_public(certified.blob) == public:
            blob = PublicBlob(certified.get_name(), certified.blob)
            # The agent signs for the plain key, or for the certificate if it has only that.
            yield Identity(_name(name, blob), _held_key(key or certified, blob, with_inner=key is not None))
    if key is not None:
        for blob in certificates.get(public, ()):
            yield Identity(_name(name, blob), _held_key(key, blob))
        yield Identity(name, _held_key(key))


def _held_key(key: AgentKey, certificate: PublicBlob | None = None, *, with_inner: bool = True) -> Any:
    held: Any = HeldKey(key.agent, key.blob, key.comment)
    held.public_blob = certificate
    if not with_inner:
        held.inner_key = None
    return held


def _name(name: str, certificate: PublicBlob | None) -> str:
    return f"{name} with its certificate" if certificate is not None else name


@contextlib.contextmanager
def open_agent(place: str | None) -> Iterator[Sequence[AgentKey]]:
    """Yield the keys of the agent that IdentityAgent names, or else of SSH_AUTH_SOCK; none if there is no agent."""
    if place == "none":
        yield ()
        return
    agent: Any = AgentSSH()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_AGENT_TIMEOUT_S)
        try:
            sock.connect(find_socket(place))
            agent._connect(sock)
        except (OSError, paramiko.SSHException):
            yield ()
            return
        yield agent.get_keys()
