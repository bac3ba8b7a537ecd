"""Copy files of a run from a host: only what is missing here, and only what was asked for, whatever the host sends.

Programs obey files that they find, such as .git/config, .envrc and launcher.toml. So no name that begins with a dot
comes unless the user has named it, and those in messages.KEPT_OUT never do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError, UsageError
from launcher.escapes import one_line
from launcher.forms import FormError, load_json
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.node.file_sender import matches, split_path
from launcher.private_files import make_private, open_private, write_private
from launcher.sync.kept_code import hash_path
from launcher.transports.archives import pack_node
from launcher.transports.base import STDOUT, Channel, Transport, TransportError
from launcher.transports.bootstrap import SENDER, open_python

_MOST_LINE_BYTES = 1 << 20
_MOST_FILES = 1_000_000  # and directories
_MOST_SAID_BYTES = 4096
SILENCE_S = 60.0  # also for a disk there
_LOOKS = 20
_MOST_NAMED = 100
_WHOLE = b"+"  # after the bytes of a file, see launcher/node/file_sender.py
_MOST_NAMES = 100  # in a path
_ORIGIN = "fetched.json"  # in a copy of logs: which run it is of


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a host: files that match the patterns in a directory there, up to a size together."""

    folder: str
    patterns: tuple[str, ...]
    most_bytes: int
    may_grow: bool = False  # logs, to which a run appends while they are copied


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of it."""

    matched: int
    copied: int
    bytes_in_all: int  # of these, as far as they were sent
    too_large: Sequence[tuple[str, int]]  # left out, with their sizes
    odd: Sequence[str]  # left out for other reasons, in words


def fetch_files(
    transport: Transport, host: Host, pythons: Sequence[str], timeout_s: float, wish: Wish, target: Path,
    origin: Mapping[str, object] | None = None,
) -> Fetched:  # fmt: skip
    """Copy what a host has to `target`; raise TransportError or LauncherError.

    It and the directory above are made with mode 0700, as all directories in it, and the files with 0600.

    Files there that have the same beginning are continued, so a copy that was cut off is, too; others are replaced.
    origin: what the copy is of, if it is one of logs; then a `target` that holds anything else is left alone.
    """
    try:
        _make(target, target.parent.parent if origin is None else target.parent)
        with _alone_in(target):
            if origin is not None:
                _mark(target, origin)
            known = _list_known(target)
            request = {**asdict(wish), "known": known, "kept_out": messages.KEPT_OUT}
            python = open_python(transport, host, pythons, timeout_s, pack_node())
            answer = _Answer(python.channel, host, python.rest)
            try:
                python.start(SENDER)
                with contextlib.suppress(OSError):  # reading tells why it has ended
                    python.channel.write(json.dumps(request).encode("ascii") + b"\n")
                return _take(answer, known, wish, target)
            finally:
                answer.close()
    except OSError as error:
        text = f"can't write {error.filename or target}: {error.strerror}"
        raise LauncherError(text, "name another directory with --log-dir") from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for others that copy to a directory, and keep them from it while the block runs."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _mark(target: Path, origin: Mapping[str, object]) -> None:
    """Write into an empty directory what the copy is of; raise UsageError for one that holds anything else."""
    with contextlib.suppress(OSError, FormError):
        if load_json((target / _ORIGIN).read_bytes()) == origin:
            return
    if any(target.iterdir()):
        raise UsageError(f"{target} is no copy of this run", "name another directory with --log-dir")
    write_private(target / _ORIGIN, json.dumps(origin))


def _list_known(target: Path) -> dict[str, tuple[int, str]]:
    """Return size and hash of the files that are here, by their paths; a part that has arrived counts first."""
    known: dict[str, tuple[int, str]] = {}
    for folder, _, names in os.walk(target):
        for name in sorted(names, key=lambda name: name.endswith(messages.PART)):
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            whole = path.with_name(name[1 : -len(messages.PART)]) if messages.is_part(name) else path
            known[whole.relative_to(target).as_posix()] = path.stat().st_size, hash_path(path)
    return known


def _take(answer: _Answer, known: dict[str, tuple[int, str]], wish: Wish, target: Path) -> Fetched:
    copied, made, sent, bytes_in_all, odd, folder = 0, 0, 0, 0, deque[str](maxlen=_MOST_NAMED), ""
    while made < _MOST_FILES:
        found = answer.read_line()
        if isinstance(found.get("error"), str):
            raise LauncherError(f"{answer.host.name}: {one_line(found['error'], _MOST_SAID_BYTES)}")
        if found.get("end"):
            failed = [f"{path}: {why}" for path, why in _read_pairs(found.get("failed"))]
            too_large = [(path, int(size)) for path, size in _read_pairs(found.get("left_out")) if size.isdecimal()]
            matched = found["matched"] if isinstance(found.get("matched"), int) else 0
            return Fetched(matched, copied, bytes_in_all, too_large, [*odd, *failed])
        path, begin, size = found.get("path"), found.get("begin"), found.get("size")
        if not isinstance(path, str) or not isinstance(begin, int) or not isinstance(size, int) or begin > size:
            raise answer.refuse("sent what is no file")
        if begin not in (0, known.get(path, (0, ""))[0]) or begin < 0:
            raise answer.refuse("sent the end of a file that isn't here")
        sent += size - begin
        if sent > wish.most_bytes:
            raise answer.refuse("sent more than it was asked for")
        made += 1 if path.rpartition("/")[0] == folder else path.count("/") + 1
        folder = path.rpartition("/")[0]
        if not is_safe(path):
            answer.copy(None, size - begin)
            why = "has characters that can't be printed" if not path.isprintable() else "can't be a file here"
            odd.append(f"{one_line(path, 200)}: its name {why}")
            continue
        if not is_wanted(path, wish.patterns):
            raise answer.refuse(f"sent a file that wasn't asked for: {path:.200}")
        if begin == size and _is_same(target / path, size):
            answer.copy(None, 0)
            continue
        if _receive(answer, target, path, begin, size):
            copied, bytes_in_all = copied + 1, bytes_in_all + size - begin
        else:
            odd.append(f"{path}: changed while it was copied")
    raise answer.refuse("sent too many files")


def is_safe(path: str) -> bool:
    """Tell whether a path from a host names a file below the directory for it, in plain characters."""
    names = path.split("/")
    return len(names) <= _MOST_NAMES and path.isprintable() and all(map(messages.is_name, names))


def is_wanted(path: str, patterns: Sequence[str]) -> bool:
    """Tell whether a path was asked for."""
    names = path.split("/")
    return any(matches(split_path(pattern), names) for pattern in patterns)


def _is_same(path: Path, size: int) -> bool:
    """Tell whether the file itself was compared, not a part of it, and none of its bytes are too many."""
    found = path.lstat() if os.path.lexists(path) else None
    is_file = (
        found is not None
        and stat.S_ISREG(found.st_mode)
        and not path.with_name(f".{path.name}{messages.PART}").exists()
    )
    return is_file and found is not None and found.st_size == size


def _receive(answer: _Answer, target: Path, path: str, begin: int, size: int) -> bool:
    """Write a file as a part, and give it its name once it is whole; return False if it has changed on the host."""
    place = target / path
    _make(place.parent, target)
    part = place.with_name(f".{place.name}{messages.PART}")
    if begin and not os.path.lexists(part):
        with open(part, "xb", opener=open_private) as file, place.open("rb") as source:
            shutil.copyfileobj(source, file)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.truncate(begin)
        file.seek(begin)
        is_whole = answer.copy(file, size - begin)
    if not is_whole:
        part.unlink()
        return False
    part.rename(place)
    return True


def _make(folder: Path, base: Path) -> None:
    """Make a directory and those above it, up to `base`; raise OSError if one of them is a link or another user's."""
    if folder == base:
        return
    _make(folder.parent, base)
    if os.path.islink(folder):  # noqa: PTH114 - false where pathlib would raise
        raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(folder))
    make_private(folder, folder.parent, exist_ok=True)


class _Answer:
    """What a host sends, in lines and bytes. A thread hangs up if nothing comes for SILENCE_S."""

    def __init__(self, channel: Channel, host: Host, rest: bytes) -> None:
        self.host = host
        self._channel = channel
        self._data = rest
        self._said = b""
        self._is_over = threading.Event()
        self._is_reading = False
        self._looks = 0  # of the thread, since something was last awaited
        start_thread(self._watch, f"watch {host.name}", lambda error: None)

    def close(self) -> None:
        """Hang up."""
        self._is_over.set()
        self._channel.close()

    def _watch(self) -> None:
        """Count the looks, not the time: this process may be suspended meanwhile."""
        while self._looks < _LOOKS and not self._is_over.wait(SILENCE_S / _LOOKS):
            self._looks += self._is_reading
        self._channel.close()

    def read_line(self) -> dict[str, Any]:
        """Return the JSON object of the next line that isn't empty."""
        line = b""
        while not line:
            while b"\n" not in self._data:
                if len(self._data) > _MOST_LINE_BYTES:
                    raise self.refuse("sent a line without end")
                self._read()
            line, _, self._data = self._data.partition(b"\n")
        try:
            found = load_json(line)
        except FormError:
            found = None
        if not isinstance(found, dict):
            raise self.refuse("sent what is no answer")
        return found

    def copy(self, file: Any, size: int) -> bool:
        """Write the next bytes to a file, or to none; return whether they are those of a file that kept still."""
        left = size
        while left:
            if not self._data:
                self._read()
            piece, self._data = self._data[:left], self._data[left:]
            left -= len(piece)
            if file is not None:
                file.write(piece)
        while not self._data:
            self._read()
        mark, self._data = self._data[:1], self._data[1:]
        return mark == _WHOLE

    def _read(self) -> None:
        self._looks, self._is_reading = 0, True
        stream, data = self._channel.read()
        self._is_reading = False
        if not stream and self._looks >= _LOOKS:
            text = f"it has sent nothing for {SILENCE_S:g} s"
            raise TransportError(HostFailure(self.host.name, HostFailureKind.SILENT, text))
        if not stream:
            said = one_line(self._said.decode("utf-8", "replace").strip().rpartition("\n")[2], 200)
            text = f"the connection was lost{': ' if said else ''}{said}"
            raise TransportError(HostFailure(self.host.name, HostFailureKind.CONNECTION, text))
        if stream == STDOUT:
            self._data += data
        else:
            self._said = (self._said + data)[-_MOST_SAID_BYTES:]

    def refuse(self, text: str) -> TransportError:
        """Return the error for what a host must not send."""
        return TransportError(HostFailure(self.host.name, HostFailureKind.PROTOCOL, text))


def _read_pairs(found: object) -> list[tuple[str, str]]:
    """Return pairs of texts that a host has sent, safe to print."""
    pairs = [each for each in found if isinstance(each, list) and len(each) == 2] if isinstance(found, list) else []
    return [(one_line(str(name), 200), one_line(str(value), 200)) for name, value in pairs]


def refuse_pattern(pattern: str) -> str | None:
    """Return why a pattern can't be one of files in the working directory; None if it can."""
    if not pattern:
        return "is empty"
    if PurePosixPath(pattern).is_absolute() or pattern.startswith("~"):
        return "must be relative to the directory in which the ranks run"
    parts = PurePosixPath(pattern).parts
    if kept_out := [part for part in parts if part.lower() in messages.KEPT_OUT]:
        return f"can't be copied, because git or launch would read {kept_out[0]} as its own"
    return "must not contain .." if ".." in parts else None
