"""What a login over Fabric offers: the keys that ssh_config names, an agent's keys, and a password that was typed.

paramiko's own login ignores the agent under `IdentitiesOnly yes`, even for keys that ssh_config names. What it can't
use, such as a locked key, a FIDO key or a certificate, isn't offered: if the host lets in nothing else, ssh is tried.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from launcher.transports.ssh.logins import TakesSsh
from launcher.transports.ssh.openssh_config import HostConfig, is_file

_AGENT_TIMEOUT_S = 30.0  # it may ask its user
_LIST_TIMEOUT_S = 10.0  # an agent that never answers is passed over: its computer sleeps, or it was stopped


class Login:
    """How paramiko logs in to one host (its auth_strategy)."""

    def __init__(self, answer: HostConfig, keys: PrivateKeys, password: str | None) -> None:
        self._answer = answer
        self._keys = keys
        self._user = answer.place.user
        self._password = password

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; raise TakesSsh if nothing was accepted, or the error that broke the connection."""
        tried = []
        with _open_agent(self._answer.options.get("identityagent", ["SSH_AUTH_SOCK"])[0]) as agent_keys:
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
        if self._password is not None and transport.is_active():
            tried.append("the password")
            try:
                if not transport.auth_password(self._user, self._password):
                    return
            except paramiko.AuthenticationException as error:
                _raise_timeout(error)
        raise TakesSsh("a login that fabric's keys don't open", self._answer.place.login_refused(tried))

    def _find_keys(self, agent_keys: Sequence[AgentKey]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys to offer, each with its name: those of ssh_config, from the agent or a file, and the agent's.

        So the agent's others are last, as sshd ends a connection after a few wrong keys (MaxAuthTries).
        """
        if self._answer.option("pubkeyauthentication") in ("no", "false"):
            return
        held = {key.blob: key for key in agent_keys}
        for path in self._answer.key_paths:
            public = read_public(path)
            if public is not None and public in held:
                yield f"{path} (agent)", held.pop(public)
            elif is_file(path):
                with contextlib.suppress(paramiko.SSHException):  # locked, or of no use
                    yield str(path), self._keys.load(path)
        if not self._answer.is_agent_limited:
            for key in held.values():
                yield f"{key.comment or 'a key'} (agent)", key


def _raise_timeout(error: paramiko.AuthenticationException) -> None:
    if "timeout" in str(error).lower():
        raise error


class PrivateKeys:
    """Keys in files, each read once for all hosts: to read one of RSA, with its check, takes half a second."""

    def __init__(self) -> None:
        self._keys: dict[Path, paramiko.PKey] = {}
        self._lock = threading.Lock()  # hosts log in in threads

    def load(self, path: Path) -> paramiko.PKey:
        """Return a private key; raise SSHException for one that is locked, or can't be used."""
        with self._lock:
            try:
                if path not in self._keys:
                    self._keys[path] = paramiko.PKey.from_path(path)
                return self._keys[path]
            # TypeError is what cryptography raises for a missing passphrase.
            except (TypeError, UnsupportedAlgorithm, paramiko.UnknownKeyType, ValueError, OSError) as error:  # type: ignore[attr-defined]
                raise paramiko.SSHException(f"{path}: {error}") from None


def read_public(path: Path) -> bytes | None:
    """Return the public half of a key, from the file beside it or `path` itself; None if it isn't there."""
    for file in (path.with_name(f"{path.name}.pub"), path):
        with contextlib.suppress(OSError, ValueError, binascii.Error, paramiko.SSHException):
            return PublicBlob.from_string(file.read_text("utf-8", "replace")).key_blob
    return None


@contextlib.contextmanager
def _open_agent(named: str) -> Iterator[Sequence[AgentKey]]:
    """Yield the keys of the agent that IdentityAgent names; none if there is no agent."""
    if named == "none":
        yield ()
        return
    agent: Any = AgentSSH()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_LIST_TIMEOUT_S)
        place = "$SSH_AUTH_SOCK" if named == "SSH_AUTH_SOCK" else named
        try:
            sock.connect(os.path.expandvars(Path(place).expanduser()))
            agent._connect(sock)
        except (OSError, paramiko.SSHException):
            yield ()
            return
        sock.settimeout(_AGENT_TIMEOUT_S)
        yield agent.get_keys()
