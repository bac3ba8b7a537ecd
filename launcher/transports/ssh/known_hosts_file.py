"""One known_hosts file, read and appended to while ssh, ssh-keygen, editors and other launches may write it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from launcher.transports.ssh.known_hosts import KnownKey, KnownKeys, parse_known_hosts

_State = tuple[int, int, int, int]


@dataclass(slots=True)
class KnownHostsFile:
    """One file and its keys.

    `keys` are those of the last read, so others may have changed the file since; `record` reads it again. Two threads
    must not call `record` at once: the caller has a lock for that. A lock on the file keeps other processes out.
    """

    path: Path
    keys: KnownKeys = field(default_factory=KnownKeys)
    _state: _State | None = None

    @classmethod
    def read(cls, path: Path) -> KnownHostsFile:
        """Read a file; one that doesn't exist, or can't be read, has no keys."""
        file = cls(path)
        with contextlib.suppress(OSError, ValueError):
            file.keys = KnownKeys(parse_known_hosts(path.read_text("utf-8", "replace")))
        return file

    def record(self, new: KnownKey) -> KnownKey | None:
        """Append a line and return None; if the file has keys for this name by now, return the same one, or another.

        Raise OSError. The file is locked meanwhile: of two launches that meet a new host at once, the second finds what
        the first has recorded.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor)
            self._read_again(descriptor)
            known = [key for key in self.keys.about(new.names) if key.marker is None]
            if not known:
                self._append(descriptor, new)
        finally:
            os.close(descriptor)
        return next((key for key in known if key.blob == new.blob), known[0]) if known else None

    def _read_again(self, descriptor: int) -> None:
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode) and _state_of(state) != self._state:
            text = os.pread(descriptor, state.st_size, 0).decode("utf-8", "replace")
            self.keys = KnownKeys(parse_known_hosts(text))

    def _append(self, descriptor: int, new: KnownKey) -> None:
        """Write the line by one call, so that no other writer's gets into it; first end a last line without newline."""
        line = f"{new.names} {new.kind} {base64.b64encode(new.blob).decode()}\n".encode()
        rest = b"\n" * _is_cut(descriptor) + line
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self.keys.add(new)
        self._state = _state_of(os.fstat(descriptor))


def end_last_line(path: Path) -> None:
    """End a last line that lacks its newline: ssh would append a new key to that line, and both keys would be lost.

    Nothing happens to a file that can't be written: ssh can't write it either.
    """
    if not lacks_newline(path):
        return
    with contextlib.suppress(OSError), path.open("ab+", buffering=0) as file:
        _lock(file.fileno())
        if _is_cut(file.fileno()):
            file.write(b"\n")


def lacks_newline(path: Path) -> bool:
    """Tell whether the file's last line lacks its newline, so that `>>` would append to that line."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return False
        with path.open("rb") as file:
            return _is_cut(file.fileno())
    except (OSError, ValueError):
        return False


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_cut(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size  # 0 for anything but a file
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _state_of(state: os.stat_result) -> _State:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
