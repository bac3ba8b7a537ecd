"""What a login over Fabric offers, in OpenSSH's order: keys that ssh_config names, an agent's keys, a password.

paramiko's own login ignores the agent under `IdentitiesOnly yes`, even for keys that ssh_config names.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from launcher.transports.ssh.failures import WOULD_NOT_SIGN
from launcher.transports.ssh.mute_agents import find_socket
from launcher.transports.ssh.openssh_config import is_file

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

    The lists grow while it tries: `tried` is what was offered, `locked` are keys that could not be.
    """

    def __init__(self, user: str, settings: Mapping[str, Any], secrets: Secrets) -> None:
        self.tried: list[str] = []
        self.locked: list[Path] = []  # their passphrases were not typed
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
        held = {key.blob: key for key in agent_keys}
        named = {path: read_public(path) for path in self.named}
        for path, public in named.items():
            if public in held:
                yield _of_agent(f"{path} (agent)", held[public])
        if self._settings.get("identitiesonly", "no") != "yes":
            for public, key in held.items():
                if public not in named.values():
                    yield _of_agent(f"{key.comment or 'a key'} (agent)", key)
        for path, public in named.items():
            if public not in held and is_file(path):
                try:
                    yield Identity(str(path), self._secrets.load(path))
                except paramiko.PasswordRequiredException:
                    self.locked.append(path)
                except UnusableKey:  # nor can ssh use it, unless `openssh_needs` has said so
                    pass

    @property
    def files(self) -> list[Path]:
        """Return the private keys that ssh_config names, or else the default ones, as far as they exist."""
        return [path for path in self.named if is_file(path)]

    @property
    def named(self) -> list[Path]:
        """Return these, and those of which only the public half is in a file, beside them: an agent may hold them."""
        return [path for path in self.paths if is_file(path) or is_file(_public_of(path))]

    @property
    def paths(self) -> list[Path]:
        """Return all that ssh_config names, or else the default ones, whether they exist or not."""
        names = self._settings.get("identityfile", _DEFAULT_FILES)
        return list(dict.fromkeys(Path(os.path.expandvars(name)).expanduser() for name in names))

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
        held = {key.blob for key in agent_keys}
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


def _of_agent(name: str, key: AgentKey) -> Identity:
    return Identity(name, HeldKey(key.agent, key.blob, key.comment))


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
