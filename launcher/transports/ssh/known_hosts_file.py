"""One known_hosts file, read and added to: ssh, ssh-keygen, editors and other launches may write it meanwhile."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from launcher.transports.ssh.known_hosts import KnownKey, parse_known_hosts

_State = tuple[int, int, int, int]


@dataclass(slots=True)
class KnownHostsFile:
    """The keys of one file, as they were when it was last looked at; two threads must not record at once."""

    path: Path
    keys: list[KnownKey] = field(default_factory=list)
    _state: _State | None = None

    @classmethod
    def read(cls, path: Path) -> KnownHostsFile:
        """Read a file; one that isn't there, or can't be read, knows no host."""
        file = cls(path)
        with contextlib.suppress(OSError, ValueError):
            file.keys = list(parse_known_hosts(path.read_text("utf-8", "replace")))
        return file

    def record(self, new: KnownKey) -> KnownKey | None:
        """Add a line, unless the file has keys for this name by now; return this one, or another. Raise OSError.

        The file is locked meanwhile: of two launches that meet a host first, one finds what the other has recorded.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            self._read_again(descriptor)
            known = [key for key in self.keys if key.marker is None and key.is_of(new.names)]
            if not known:
                self._append(descriptor, new)
        finally:
            os.close(descriptor)
        return next((key for key in known if key.blob == new.blob), known[0]) if known else None

    def _read_again(self, descriptor: int) -> None:
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode) and _state_of(state) != self._state:
            text = os.pread(descriptor, state.st_size, 0).decode("utf-8", "replace")
            self.keys = list(parse_known_hosts(text))

    def _append(self, descriptor: int, new: KnownKey) -> None:
        """Write the line by one call, so that it isn't mixed with another's; a last line without an end gets one."""
        line = f"{new.names} {new.kind} {base64.b64encode(new.blob).decode()}\n".encode()
        rest = b"\n" * _is_cut(descriptor) + line
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self.keys.append(new)
        self._state = _state_of(os.fstat(descriptor))


def end_last_line(path: Path) -> None:
    """Give a last line without an end one: ssh writes a new key right behind it, and both keys would be lost.

    Nothing happens to a file that can't be written: ssh can't write it either.
    """
    if not lacks_newline(path):
        return
    with contextlib.suppress(OSError), path.open("ab+", buffering=0) as file:
        _lock(file.fileno())
        if _is_cut(file.fileno()):
            file.write(b"\n")


def lacks_newline(path: Path) -> bool:
    """Tell whether a line that is added by `>>` would become a part of the file's last one."""
    try:
        if not path.is_file():  # opening a pipe waits for who writes it
            return False
        with path.open("rb") as file:
            return _is_cut(file.fileno())
    except (OSError, ValueError):
        return False


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_cut(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size  # 0 for what is no file
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _state_of(state: os.stat_result) -> _State:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
