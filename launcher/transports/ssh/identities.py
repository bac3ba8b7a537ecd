"""What a login over Fabric offers: the keys that ssh_config names, an agent's keys, and what the user has typed.

paramiko's own login ignores the agent under `IdentitiesOnly yes`, even for keys that ssh_config names. What it can't
use, such as a FIDO key or a certificate, isn't offered: if the host lets in nothing else, ssh is tried.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from launcher.transports.ssh.openssh_config import is_file

_DEFAULT_FILES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk")
_AGENT_TIMEOUT_S = 30.0  # it may ask its user
_LIST_TIMEOUT_S = 10.0  # an agent that never answers is passed over: its computer sleeps, or it was stopped


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
        return self.has_typed(path)

    def has_typed(self, path: Path) -> bool:
        """Tell whether a key's passphrase was typed, which ssh can't be given."""
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
        """Read a private key, once for all hosts; raise PasswordRequiredException, or for one that can't be used."""
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
        raise paramiko.SSHException(f"{path}: {error}") from None


def read_public(path: Path) -> bytes | None:
    """Return the public half of a key, from the file beside it or `path` itself; None if it isn't there."""
    for file in (path.with_name(f"{path.name}.pub"), path):
        with contextlib.suppress(OSError, ValueError, binascii.Error, paramiko.SSHException):
            return PublicBlob.from_string(file.read_text("utf-8", "replace")).key_blob
    return None


def named_keys(settings: Mapping[str, Any]) -> list[Path]:
    """Return the keys that ssh_config names, or else the default ones, whether they exist or not."""
    names = settings.get("identityfile", _DEFAULT_FILES)
    return list(dict.fromkeys(Path(os.path.expandvars(name)).expanduser() for name in names))


class LoginRefused(paramiko.AuthenticationException):
    """The server has accepted nothing that was tried; has_typed: among it was a secret that ssh can't be given."""

    def __init__(self, tried: Sequence[str], *, has_typed: bool) -> None:
        super().__init__("login refused")
        self.tried = tuple(tried)
        self.has_typed = has_typed


class Login:
    """How paramiko logs in to one host (its auth_strategy); `settings` are the options of ssh_config for the host."""

    def __init__(self, user: str, settings: Mapping[str, Any], secrets: Secrets) -> None:
        self._user = user
        self._settings = settings
        self._secrets = secrets
        self._has_typed = secrets.password is not None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; raise LoginRefused, or the error that broke the connection."""
        tried = []
        with open_agent(self._settings.get("identityagent")) as agent_keys:
            for name, key in self._find_keys(agent_keys):
                tried.append(name)
                try:
                    if not transport.auth_publickey(self._user, key):  # else it wants more, maybe another key
                        return
                except paramiko.BadAuthenticationType:  # it takes no keys, or no further one
                    break
                except paramiko.AuthenticationException as error:
                    _raise_timeout(error)
                if not transport.is_active():  # too many tries
                    break
        if self._secrets.password is not None and transport.is_active():
            tried.append("the password")
            try:
                if not transport.auth_password(self._user, self._secrets.password):
                    return
            except paramiko.AuthenticationException as error:
                _raise_timeout(error)
        raise LoginRefused(tried, has_typed=self._has_typed)

    def _find_keys(self, agent_keys: Sequence[AgentKey]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys to offer, each with its name: those of ssh_config, from the agent or a file, and the agent's.

        So the agent's others are last, as sshd ends a connection after a few wrong keys (MaxAuthTries).
        """
        if self._settings.get("pubkeyauthentication") in ("no", "false"):
            return
        held = {key.blob: key for key in agent_keys}
        for path in named_keys(self._settings):
            public = read_public(path)
            if public is not None and public in held:
                yield f"{path} (agent)", held.pop(public)
            elif is_file(path):
                self._has_typed = self._has_typed or self._secrets.has_typed(path)
                with contextlib.suppress(paramiko.SSHException):  # locked, or of no use
                    yield str(path), self._secrets.load(path)
        if self._settings.get("identitiesonly", "no") != "yes":
            for key in held.values():
                yield f"{key.comment or 'a key'} (agent)", key


def _raise_timeout(error: paramiko.AuthenticationException) -> None:
    if "timeout" in str(error).lower():
        raise error


def locked_keys(settings: Mapping[str, Any], secrets: Secrets) -> list[Path]:
    """Return the keys for which to ask for a passphrase: no agent holds them.

    A default key counts only if every key is locked and the agent is empty: otherwise the login may succeed without it.
    """
    with open_agent(settings.get("identityagent")) as agent_keys:
        held = {key.blob for key in agent_keys}
    files = [path for path in named_keys(settings) if is_file(path)]
    locked = [path for path in files if read_public(path) not in held and secrets.is_locked(path)]
    is_alone = not held and len(locked) == len(files)
    defaults = [Path(name).expanduser() for name in _DEFAULT_FILES]
    return [path for path in locked if is_alone or path not in defaults]


@contextlib.contextmanager
def open_agent(place: str | None) -> Iterator[Sequence[AgentKey]]:
    """Yield the keys of the agent that IdentityAgent names, or else of SSH_AUTH_SOCK; none if there is no agent."""
    if place == "none":
        yield ()
        return
    agent: Any = AgentSSH()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_LIST_TIMEOUT_S)
        named = "$SSH_AUTH_SOCK" if place in (None, "SSH_AUTH_SOCK") else place
        try:
            sock.connect(os.path.expandvars(Path(named).expanduser()))
            agent._connect(sock)
        except (OSError, paramiko.SSHException):
            yield ()
            return
        sock.settimeout(_AGENT_TIMEOUT_S)
        yield agent.get_keys()
