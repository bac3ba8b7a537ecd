"""Files and directories that may hold secrets: for the user alone, whatever the umask says."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file as `opener` of open(); a new one gets mode 0600, an existing one keeps its own."""
    return os.open(path, flags, 0o600)


def make_private(folder: Path, base: Path, *, exist_ok: bool = False) -> None:
    """Make a directory with mode 0700, and what is missing between it and `base`; `base` itself is by the umask.

    What exists keeps its mode.
    """
    if folder.parent != base:
        make_private(folder.parent, base, exist_ok=True)
    elif not os.path.lexists(base):
        base.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=exist_ok)


@contextmanager
def lock_directory(path: str) -> Iterator[tuple[int, ...]]:
    """Keep systemd-tmpfiles, which removes what is ten days old in /tmp, out of a directory.

    The lock lives as long as the block, or as long as a process that inherits the descriptors that this yields.
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
