"""Send files from the working directory of a run to the launch host, which says what it has of them.

What is asked comes on stdin: a line with a JSON object. The answer on stdout is such a line for each file, followed by
the bytes that the launch host lacks and one byte, and a last line with what was left out. Empty lines show that the
search continues.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import stat
import time
from signal import alarm
from typing import Iterator, Sequence

_READ_BYTES = 1 << 18
_MOST_REQUEST_BYTES = 64 << 20
_STALLED_S = 300  # for the launch host to take what is written
BEAT_S = 5.0  # between two signs of a search
WHOLE, CHANGED = b"+", b"-"  # after the bytes of a file: whether it kept still
_MOST_NAMED = 100
_written_at = [0.0]


def main(nonce: str, wait_s: int) -> None:
    """Answer one request; wait_s: for the next bytes of it."""
    request = json.loads(_read_line(wait_s).decode("ascii"))
    try:
        os.chdir(request["folder"])
    except OSError as error:
        _write_line({"error": "%s can't be entered: %s" % (request["folder"], error.strerror)})
        return
    left, left_out, failed = request["most_bytes"], [], []
    paths = find_files(request["patterns"], request["kept_out"])
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            failed.append([path, error.strerror])
            continue
        with open(fd, "rb", buffering=0):
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                continue
            known_bytes, known_hash = request["known"].get(path, (0, ""))
            begin = known_bytes if known_bytes <= found.st_size and hash_start(fd, known_bytes) == known_hash else 0
            if found.st_size - begin > left:
                left_out.append([path, found.st_size])
                continue
            left -= found.st_size - begin
            _send(fd, path, begin, found, may_grow=request["may_grow"])
    named = {"left_out": left_out[:_MOST_NAMED], "failed": failed[:_MOST_NAMED]}
    _write_line({"end": True, "matched": len(paths), **named})


def find_files(patterns: Sequence[str], kept_out: Sequence[str]) -> list[str]:
    """Return the files that match, and those in directories that do; a link is followed only where one is named.

    What is called as one of `kept_out` isn't among them, nor what begins with a dot unless a pattern names it.
    """
    found: set[str] = set()
    for pattern in patterns:
        names = split_path(pattern)
        is_open = [glob.has_magic(name) for name in names]
        end = is_open.index(True) if True in is_open else len(names)
        base = os.path.join(*names[:end]) if end else "."
        if os.path.isdir(base):
            found.update(_walk(base, names[end:], kept_out))
        elif end == len(names) and os.path.isfile(base):
            found.add(base)
    return sorted(found)


def split_path(path: str) -> list[str]:
    """Return the names in a path or pattern."""
    return [name for name in path.split("/") if name not in ("", ".")]


def _walk(base: str, pattern: Sequence[str], kept_out: Sequence[str]) -> Iterator[str]:
    for folder, folders, names in os.walk(base):
        _beat()
        place = [] if folder == base else os.path.relpath(folder, base).split("/")
        folders[:] = [
            name
            for name in folders
            if name.lower() not in kept_out and matches(pattern, [*place, name], is_folder=True)
        ]
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            is_wanted = name.lower() not in kept_out and matches(pattern, [*place, name])
            if is_wanted and os.path.isfile(path) and not os.path.islink(path):
                yield path


def matches(pattern: Sequence[str], names: Sequence[str], *, is_folder: bool = False) -> bool:
    """Tell whether a path matches, or is below what does; is_folder: or something in it could match.

    As in a shell, only what begins with a dot in the pattern matches a name that does.
    """
    if is_folder and not names:
        return True
    if not pattern:
        return not any(name.startswith(".") for name in names)
    if pattern[0] == "**":
        for begin in range(len(names) + 1):
            rest = names[begin:]
            if rest and matches(pattern[1:], rest, is_folder=is_folder):
                return True
            if not rest or rest[0].startswith("."):
                return is_folder and not rest
    if not names or not fnmatch.fnmatchcase(names[0], pattern[0]):
        return False
    if names[0].startswith(".") and not pattern[0].startswith("."):
        return False
    return matches(pattern[1:], names[1:], is_folder=is_folder)


def hash_start(fd: int, size: int) -> str:
    """Return the hash of the first bytes of a file; empty for none."""
    digest, place = hashlib.sha256(), 0
    while place < size:
        data = os.pread(fd, min(_READ_BYTES, size - place), place)
        if not data:
            return ""
        _beat()
        digest.update(data)
        place += len(data)
    return digest.hexdigest() if size else ""


def _send(fd: int, path: str, begin: int, found: os.stat_result, *, may_grow: bool) -> None:
    """Send the rest of a file; one that becomes shorter meanwhile is filled up, and so is one that has changed.

    may_grow: what is appended meanwhile is no change, as in the logs of a run.
    """
    _write_line({"path": path, "begin": begin, "size": found.st_size})
    place = begin
    while place < found.st_size:
        size = min(_READ_BYTES, found.st_size - place)
        data = os.pread(fd, size, place).ljust(size, b"\0")
        _write(data)
        place += size
    after = os.fstat(fd)
    is_same = (after.st_size, after.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
    _write(WHOLE if is_same or (may_grow and after.st_size >= found.st_size) else CHANGED)


def _write_line(values: dict[str, object]) -> None:
    _write(json.dumps(values).encode("ascii") + b"\n")


def _beat() -> None:
    if time.monotonic() - _written_at[0] >= BEAT_S:
        _write(b"\n")


def _write(data: bytes) -> None:
    _written_at[0] = time.monotonic()
    alarm(_STALLED_S)
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
    alarm(0)


def _read_line(wait_s: int) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _MOST_REQUEST_BYTES:
        alarm(wait_s)
        piece = os.read(0, _READ_BYTES)
        if not piece:
            os._exit(1)
        data += piece
    alarm(0)
    return data
