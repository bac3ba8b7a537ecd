"""Take the launcher's own code on a host, and run it there: for the controller of a run, and to ask about runs.

The code is kept by its hash in the user's cache directory, so it is sent once. Unlike the code of a supervisor it needs
Python 3.10.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import alarm
    from typing import NoReturn
else:
    from _signal import alarm  # it ends this process if nothing comes

PYTHON = (3, 10)
KEPT_S = 180 * 86400.0
MISSING, PRESENT, OLD, FAILED = "missing", "present", "old", "failed"  # the first word of the answer
_EXIT_CODE = 1


def main(name: str, files: int, bytes_in_all: int, size: int, wait_s: int) -> None:
    """Answer whether the code is here, take it if not, and let it be imported.

    name: its hash; files: how many there are, with so many bytes in all; size: of the archive, in bytes; wait_s: for
    the next bytes of it.
    """
    alarm(0)
    if sys.version_info < PYTHON:
        _give_up(OLD, "%d.%d" % sys.version_info[:2])
    folder = os.path.join(_find_cache(), "launch", "code", name)
    try:
        if _measure(folder) == (files, bytes_in_all):
            os.utime(folder)
            _answer(PRESENT)
        else:
            _answer(MISSING)
            _unpack(_take(size, wait_s), folder)
            _answer(PRESENT)
    except OSError as error:
        _give_up(FAILED, "can't write %s: %s" % (folder, error.strerror))
    sys.path.insert(0, folder)
    with open("/proc/self/comm", "w") as file:  # what ps and top show
        file.write("launch")


def _find_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")


def _measure(folder: str) -> tuple[int, int]:
    """Return how many files of code a directory has, and their size.

    A cleaner of caches may have removed some, and the loss of power may have left them empty.
    """
    paths = [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names if name.endswith(".py")]
    return len(paths), sum(os.path.getsize(path) for path in paths)


def _unpack(archive: bytes, folder: str) -> None:
    """Unpack an archive, so that the directory appears whole: several may do so at once."""
    import shutil
    import tempfile
    import zipfile

    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    _remove_old(os.path.dirname(folder))
    fresh = tempfile.mkdtemp(dir=os.path.dirname(folder))
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            file.extractall(fresh)
        try:
            os.rename(fresh, folder)
        except OSError:  # another one was faster, or files are missing there
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _remove_old(base: str) -> None:
    """Remove the code of versions that nothing was asked of for long; no run is that old."""
    import shutil
    import time

    for name in os.listdir(base):
        path = os.path.join(base, name)
        if time.time() - os.path.getmtime(path) > KEPT_S:
            shutil.rmtree(path, ignore_errors=True)


def _take(size: int, wait_s: int) -> bytes:
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
