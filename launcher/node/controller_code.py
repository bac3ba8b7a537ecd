"""Take the launcher's own code on a host, and run it there: for the controller of a run, and to ask about runs.

The code is an archive that is kept under its hash in the user's cache directory, so it is sent once. Unlike the code of
a supervisor it needs Python 3.10.

What is run is what was hashed, in memory: whatever happens to the file later doesn't matter, neither to what is
imported now nor to what a controller imports days later, and no bytecode is ever read from a disk. So a full disk is no
reason not to run it: a run must be stopped then, too.
"""

from __future__ import annotations

import errno
import os
import sys

from launcher.node.own_folders import make_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import alarm
    from typing import NoReturn
else:
    from _signal import alarm  # it ends this process if nothing comes

PYTHON = (3, 10)
KEPT_S = 180 * 86400.0
MISSING, PRESENT, OLD, FAILED = "missing", "present", "old", "failed"  # the first word of the answer
LENGTH_BYTES = 8  # before the archive, which is compressed
_EXIT_CODE = 1
_MOST_BYTES = 64 << 20
_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # of a disk, whoever asks


def main(name: str, wait_s: int) -> None:
    """Answer whether the code is here, take it if not, and let it be imported.

    name: the hash of its archive; wait_s: for the next bytes of it.
    """
    alarm(0)
    if sys.version_info < PYTHON:
        _give_up(OLD, "%d.%d" % sys.version_info[:2])
    base = os.path.join(_find_cache(), "launch")
    folder = os.path.join(base, "code")
    path = os.path.join(folder, name)
    try:
        may_keep = _has_room(make_own, base) and _has_room(make_own, folder)
        archive = _read(path)
        if _hash(archive) == name:
            _has_room(os.utime, path)
        else:
            _answer(MISSING)
            archive = _take(wait_s)
            if _hash(archive) != name:
                _give_up(FAILED, "its code came with another content")
            if may_keep:
                _has_room(_keep, archive, path)
        sys.path.insert(0, _hold(archive))
    except OSError as error:
        _give_up(FAILED, "can't keep the code in %s: %s" % (error.filename or folder, error.strerror))
    _answer(PRESENT)
    for each in [each for each in sys.modules if each.partition(".")[0] == "launcher"]:
        del sys.modules[each]  # that is this module, and what it needed
    try:
        with open("/proc/self/comm", "w") as file:  # what ps and top show
            file.write("launch")
    except OSError:
        pass  # some containers have it read-only


def _find_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")


def _has_room(write: Callable[..., object], *args: object) -> bool:
    """Write to the disk; return False if it takes nothing."""
    try:
        write(*args)
    except OSError as error:
        if error.errno not in _TAKES_NOTHING:
            raise
        return False
    return True


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _read(path: str) -> bytes:
    """Return what is there; nothing if that is no file that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
        with open(fd, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _keep(archive: bytes, path: str) -> None:
    """Keep an archive, so that it appears whole: several may do so at once."""
    _remove_old(os.path.dirname(path))
    fresh = "%s.%s" % (path, os.urandom(8).hex())
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(archive)
        os.rename(fresh, path)
    except OSError as error:
        _remove(fresh)
        raise OSError(error.errno, error.strerror, path) from None


def _hold(archive: bytes) -> str:
    """Return a path of an archive in memory, which only this process, and those that it forks, can use."""
    try:
        fd = os.memfd_create("launch")
    except (AttributeError, OSError):  # a Python that was built for an old C library
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with open(fd, "wb", closefd=False) as file:
        file.write(archive)
    return "/proc/self/fd/%d" % fd


def _remove_old(base: str) -> None:
    """Remove the code of versions that nothing was asked of for long; no run is that old."""
    import time

    for name in os.listdir(base):
        path = os.path.join(base, name)
        if time.time() - os.lstat(path).st_mtime > KEPT_S:
            _remove(path)


def _remove(path: str) -> None:
    """Remove an archive, or the directory in which an earlier version kept one."""
    import shutil

    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _take(wait_s: int) -> bytes:
    import zlib

    size = int.from_bytes(_read_all(LENGTH_BYTES, wait_s), "big")
    return zlib.decompress(_read_all(size, wait_s))


def _read_all(size: int, wait_s: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        alarm(wait_s)
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(_EXIT_CODE)
        data += piece
    alarm(0)
    return bytes(data)


def _answer(word: str, text: str = "") -> None:
    os.write(1, ("%s %s\n" % (word, text)).encode())


def _give_up(word: str, text: str) -> NoReturn:
    _answer(word, text)
    os._exit(_EXIT_CODE)
