"""Put a complete checkpoint in its place, so that one of that name is whole at every instant, even if the power fails.

    .step_120.tmp     being written: never taken for a checkpoint
    .step_120.old     whole, and displaced by a new one; it counts while there is no step_120
    .step_120.gone    being removed: never taken for a checkpoint

Files and directories are flushed to disk before a rename makes them a checkpoint, and a rename is flushed before
anything older is removed: the kernel may write what isn't flushed in any order. `sync_file` and `sync_folder` flush.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

DISPLACED = re.compile(r"\.(step_\d+)\.old")
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # from Linux's fcntl.h and fs.h
# The file system, the kernel or the C library can't exchange names: NFS, Linux before 3.15, glibc before 2.28.
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename the directory of a complete checkpoint, which is on disk, to `path`, and remove one of that name."""
    restore_displaced(path.parent)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not path.exists():
        temporary.rename(path)
        sync_folder(path.parent)
    elif exchange(temporary, path):
        sync_folder(path.parent)
        discard([temporary])
    else:
        displaced = path.with_name(f".{path.name}.old")
        if displaced.exists():  # a run was killed before it removed it
            discard([displaced])
        path.rename(displaced)
        temporary.rename(path)
        sync_folder(path.parent)
        discard([displaced])


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step; return False where that isn't possible."""
    rename = find_renameat2()
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number not in UNSUPPORTED:
        raise OSError(number, os.strerror(number), str(other))
    return False


def find_renameat2() -> Any:
    """Return the function of the C library, or None without it."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


def find_displaced(folder: Path) -> list[Path]:
    """Return the checkpoints that were displaced, but whose place is empty, since the run was killed."""
    found = [(path, DISPLACED.fullmatch(path.name)) for path in folder.glob(".step_*.old")]
    return [path for path, match in found if match and not (folder / match[1]).exists()]


def restore_displaced(folder: Path) -> None:
    """Give displaced checkpoints their names back."""
    displaced = find_displaced(folder)
    for path in displaced:
        path.rename(folder / path.name[1 : -len(".old")])
    if displaced:
        sync_folder(folder)


def discard(paths: Sequence[Path]) -> None:
    """Remove checkpoints of one directory; none of them is taken for a checkpoint while only a part of it exists."""
    removed = []
    for path in paths:
        name = path.name.strip(".").partition(".")[0]
        gone = path.with_name(f".{name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        removed.append(gone)
    if removed:
        sync_folder(removed[0].parent)
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)


def make_durable(path: Path) -> None:
    """Make a directory and its parents, and flush their names to disk."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(made):
        sync_folder(folder.parent)


def write_durable(path: Path, content: bytes) -> None:
    """Write a new file, and flush its content to disk; its name is flushed with the directory."""
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)


def sync_file(file: IO[Any]) -> None:
    """Flush the content of an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a directory to disk; only then does a new name in it survive a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
