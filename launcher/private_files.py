"""Create files and directories that may hold secrets: only the user can read them, whatever the umask is."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def open_private(path: str, flags: int) -> int:
    """Open a file, as the `opener` of open(); a new one gets mode 0600, an existing one keeps its mode."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path, base: Path, *, exist_ok: bool = False) -> None:
    """Make a directory with mode 0700, and those missing between it and `base`; `base` itself follows the umask.

    An existing one that others may write to gets this mode, too. Raise PermissionError if another user has made it.
    """
    if folder.parent != base:
        make_private(folder.parent, base, exist_ok=True)
    elif not os.path.lexists(base):
        base.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError:  # not always EEXIST, as on a file system that is read-only
        if not (exist_ok and folder.is_dir()):
            raise
        _take_over(folder)


def _take_over(folder: Path) -> None:
    found = folder.stat()
    # Whoever owns the directory above could replace this one anyhow; where a server maps users, all have one owner.
    if found.st_uid not in (os.geteuid(), folder.parent.stat().st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", str(folder))
    if found.st_mode & 0o022 and found.st_uid == os.geteuid():
        folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Write a text; an argument that isn't valid text holds lone surrogates, which as `\\udce9` are JSON again."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=open_private) as file:
        file.write(text)


def replace_private(path: Path, text: str) -> None:
    """Write a text so that whoever reads the file gets the old text or the new one."""
    with _replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def replace_durably(path: Path, data: bytes) -> None:
    """Write bytes as `replace_private` does a text, so that a power cut leaves the old ones or the new ones, too."""
    with _replacing(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    flush(path.parent)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a new file the name of an old one when the block ends; nobody can have put a link in its place."""
    fresh = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    try:
        with open(fresh, "xb", opener=open_private) as file:
            yield file
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()  # a full disk leaves it empty
        raise


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that can't
            os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def lock_directory(path: str) -> Iterator[tuple[int, ...]]:
    """Keep systemd-tmpfiles, which removes files in /tmp that are ten days old, out of a directory.

    The lock is held until the block ends, and until every process that inherits the yielded descriptors has ended.
    See https://systemd.io/TEMPORARY_DIRECTORIES.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield ()
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield (fd,)
    finally:
        os.close(fd)
