"""Keep archives of launch's code on this host for a month; then one that is still used is sent again."""

from __future__ import annotations

import marshal
import os
import time
from contextlib import suppress
from hashlib import sha256

from launcher.node.archive import Archive
from launcher.node.loading import make_folder, path_kept

KEPT_S = 30 * 86400.0


def keep(folder: str, name: str, archive: Archive) -> bytes:
    """Keep an archive and the bytecode that this Python makes of it, if that can be made and the disk takes it."""
    with suppress(OSError, SyntaxError):  # the disk takes nothing, or this Python is too old for a part of it
        _remove_older(folder, time.time() - KEPT_S)
        bytecode = {path: marshal.dumps(archive.compile(path)) for path in archive.files}
        data = marshal.dumps((archive.content, bytecode))
        _write(path_kept(folder, name), sha256(data).digest() + data)
    return b""


def remove_all() -> bytes:
    """Remove all archives: what runs has its own in memory."""
    with suppress(OSError):  # there are none that may be used
        _remove_older(make_folder(), time.time() + KEPT_S)
    return b""


def _write(path: str, data: bytes) -> None:
    """Write a file so that it appears whole: several may do so at once."""
    fresh = "%s.%s" % (path, os.urandom(8).hex())
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
        os.rename(fresh, path)
    except OSError:
        _remove(fresh)
        raise


def _remove_older(folder: str, before: float) -> None:
    for entry in os.scandir(folder):
        try:
            is_older = entry.stat(follow_symlinks=False).st_mtime < before
        except OSError:  # another host that shares this home has removed or renamed it
            continue
        if is_older:
            _remove(entry.path)


def _remove(path: str) -> None:
    with suppress(OSError):  # another host was faster
        os.unlink(path)
