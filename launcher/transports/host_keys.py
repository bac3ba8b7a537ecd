"""Host keys: checked against the known_hosts files that ssh_config names, as OpenSSH does.

Fabric never loads them and accepts every key, so a changed key would pass in silence.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from pathlib import Path
from typing import Any

import fabric
import paramiko

_DEFAULT_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_ACCEPT_ANY = ("no", "off")


class UnknownHostKey(paramiko.SSHException):
    """The host has no key in known_hosts."""

    def __init__(self, name: str, key: paramiko.PKey) -> None:
        super().__init__(f"no key of {name} is known")
        self.fingerprint = f"{key.get_name()} {key.fingerprint}"


class KnownHosts:
    """The known_hosts files, each read once for all hosts."""

    def __init__(self, *, accept_new: bool) -> None:
        self._accept_new = accept_new
        self._files: dict[Path, paramiko.HostKeys] = {}
        self._lock = threading.Lock()

    def guard(self, connection: fabric.Connection) -> None:
        """Give the connection the keys that are known of its host, and the policy for one that has none."""
        settings = connection.ssh_config
        own = _paths(settings.get("userknownhostsfile", _DEFAULT_FILES))
        name = connection.host if connection.port == 22 else f"[{connection.host}]:{connection.port}"
        keys = connection.client.get_host_keys()
        for path in own + _paths(settings.get("globalknownhostsfile", _DEFAULT_GLOBAL_FILES)):
            for key_type, key in (self._read(path).lookup(name) or {}).items():
                keys.add(name, key_type, key)
        connection.client.set_missing_host_key_policy(self._policy(settings, own))

    def _read(self, path: Path) -> paramiko.HostKeys:
        with self._lock:
            if path not in self._files:
                known = paramiko.HostKeys()
                with contextlib.suppress(OSError):  # a file that is not there knows no host
                    known.load(str(path))
                self._files[path] = known
            return self._files[path]

    def _policy(self, settings: dict[str, Any], own: list[Path]) -> paramiko.MissingHostKeyPolicy:
        wish = str(settings.get("stricthostkeychecking", "ask")).lower()
        if wish in _ACCEPT_ANY:
            return _AnyKey()
        return _Policy(own[0] if own else None, accept=self._accept_new or wish == "accept-new", lock=self._lock)


class _AnyKey(paramiko.MissingHostKeyPolicy):
    """Accepts what ssh_config says is not to be checked (paramiko's own policy warns on stderr, with its own path)."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        pass


class _Policy(paramiko.MissingHostKeyPolicy):
    """Rejects an unknown key, or writes it down where that was asked for."""

    def __init__(self, file: Path | None, *, accept: bool, lock: threading.Lock) -> None:
        self._file = file
        self._accept = accept
        self._lock = lock

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if not self._accept:
            raise UnknownHostKey(hostname, key)
        if self._file is None:
            return
        line = f"{hostname} {key.get_name()} {key.get_base64()}\n"
        with self._lock:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)


def first_known_file(value: str) -> Path | None:
    """Return where a new key goes: the first file of UserKnownHostsFile."""
    return next(iter(_paths(value)), None)


def _paths(value: str) -> list[Path]:
    return [Path(word).expanduser() for word in shlex.split(value) if word != "none"]
