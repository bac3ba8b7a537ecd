"""The logs of a run, from the host that controls it: how they are sent there, and taken here."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from launcher.errors import LauncherError, UsageError
from launcher.forms import load_json
from launcher.hosts.ranges import shown
from launcher.node.messages import is_file_name
from launcher.output.lines import STDOUT
from launcher.private_files import make_private, open_private, write_private
from launcher.runs.run_list import ListedRun, Way

_READ_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 12
_MOST_BYTES = 64 << 30
_MOST_FILES = 100_000
_LOG = re.compile(
    r"(bisection/\d{8}-\d{6}(-\d{1,2})?/)?"
    r"(run\.json|launch\.log|node_\d{1,5}\.log|samples\.jsonl|stacks-(restart_\d{1,9}-)?\d{1,9}\.txt"
    r"|files/(restart_\d{1,9}/)?node_\d{1,5}/(?P<name>[^/]+))",
    re.ASCII,
)
_MOST_COPIES = 99
_MOST_SAID_BYTES = 1 << 16
_LEFT_S = 86400.0  # a fetch that was killed leaves what it had
_ORIGIN = "fetched.json"  # in a copy: which run it is of


def send_logs(run: ListedRun) -> int:
    """Write the files of a run's logs to stdout, compressed: a line of JSON before each, with its path and its size."""
    if not run.folder.is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as stream:
        gone = () if run.is_alive is False else (FileNotFoundError,)  # a run that is still writing replaces files
        for path in sorted(run.folder.rglob("*")):
            name = path.relative_to(run.folder).as_posix()
            if _is_log(name) and path.is_file() and not path.is_symlink():
                with contextlib.suppress(*gone), path.open("rb") as file:
                    left = os.fstat(file.fileno()).st_size  # it may grow meanwhile
                    stream.write(json.dumps({"path": name, "size": left}).encode("ascii") + b"\n")
                    while left:
                        left -= stream.write(file.read(min(left, _READ_BYTES)) or bytes(min(left, _READ_BYTES)))
    return 0


def _is_log(path: str) -> bool:
    """Tell whether `launch` keeps a file of this name among the logs of a run."""
    match = _LOG.fullmatch(path)
    return match is not None and path.isprintable() and (match["name"] is None or is_file_name(match["name"]))


class RemoteOutput(Protocol):
    """The output of a launcher on a host."""

    exit_code: int | None  # once all was read

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield pairs of stream and bytes; raise TransportError if it breaks off."""


def take_logs(output: RemoteOutput, way: Way, run_id: str, base: Path) -> tuple[Path | None, str]:
    """Write the logs that a launcher on a host sends to `base`/`run_id`; return that directory, and what it said.

    The directory appears whole, and replaces an earlier copy of this run from this host; where another one has that
    name, it gets the next free one, `run_id`.2. Several may do this at once: each ends with a whole copy. Nothing else
    is written, whatever the host sends. Raise LauncherError for what isn't whole, or a full disk.
    """
    stream = _Stream(output.pieces())
    fresh = base / f".{run_id}.{secrets.token_hex(4)}.new"
    origin = {"run": run_id, "host": way.name, "user": way.user, "port": way.port}
    try:
        _remove_left(base, run_id)
        make_private(fresh, base)
        try:
            with gzip.GzipFile(fileobj=stream) as plain:
                _unpack(plain, fresh)
            stream.drain()
            folder = None
            if not output.exit_code:
                write_private(fresh / _ORIGIN, json.dumps(origin))
                folder = _put(fresh, base, origin)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, KeyError, TypeError) as error:
        if not stream.errors and not output.exit_code:
            raise LauncherError(f"the logs of {way.name} arrived damaged: {error}", "try again") from None
        folder = None
    except OSError as error:
        raise LauncherError(f"can't write {base}: {error.strerror}", "name another directory with --log-dir") from None
    return folder, stream.errors.decode("utf-8", "replace")


def _unpack(plain: gzip.GzipFile, fresh: Path) -> None:
    """Write the files of a run, and read to the end, where the checksum is."""
    left = _MOST_BYTES
    for number in range(_MOST_FILES):
        line = plain.readline(_MOST_HEADER_BYTES)
        if number and not line:
            return
        header = load_json(line)
        path, size = header["path"], header["size"]
        if not isinstance(path, str) or not _is_log(path):
            raise ValueError(f"{shown(str(path))} is no file of a run")
        if type(size) is not int or not 0 <= size <= left:
            raise ValueError(f"more than {_MOST_BYTES >> 30} GiB")
        if (fresh / path).exists():
            raise ValueError(f"{path} more than once")
        left -= size
        make_private((fresh / path).parent, fresh.parent, exist_ok=True)
        with open(fresh / path, "xb", opener=open_private) as file:
            while size:
                piece = plain.read(min(size, _READ_BYTES))
                if not piece:
                    raise EOFError("a file without its end")
                size -= file.write(piece)
    raise ValueError(f"more than {_MOST_FILES} files")


def _put(fresh: Path, base: Path, origin: dict[str, Any]) -> Path:
    """Give a whole copy its name; raise OSError if that fails."""
    for number in range(1, _MOST_COPIES + 1):
        folder = base / (origin["run"] if number == 1 else f"{origin['run']}.{number}")
        while True:
            seen = _look(folder)
            if seen is None:
                try:
                    fresh.rename(folder)
                    return folder
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
            elif _is_copy(folder, origin):
                _remove(folder)
            elif seen == _look(folder):
                break
            # Another fetch has put its copy there meanwhile.
    raise FileExistsError(errno.EEXIST, f"{_MOST_COPIES} runs have this id", str(folder))


def _look(path: Path) -> tuple[int, int, int] | None:
    """Return what identifies a file or directory; None if there is none.

    Inodes are used again, even for the next directory; what has just been renamed has another time of change.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _is_copy(folder: Path, origin: dict[str, Any]) -> bool:
    """Tell whether a directory is this user's earlier copy of the same run; a link is none."""
    try:
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return is_own and json.loads((folder / _ORIGIN).read_text("utf-8")) == origin
    except (OSError, ValueError, RecursionError):
        return False


def _remove(folder: Path) -> None:
    """Remove an earlier copy at once, unless another fetch has just done so."""
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.new")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _remove_left(base: Path, run_id: str) -> None:
    for path in base.glob(f".{run_id}.*.new"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - _LEFT_S:
                shutil.rmtree(path, ignore_errors=True)


class _Stream(io.RawIOBase):
    """The stdout of a launcher, as a file."""

    def __init__(self, pieces: Iterator[tuple[int, bytes]]) -> None:
        super().__init__()
        self._pieces = pieces
        self._data = b""
        self.errors = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._data:
            stream, data = next(self._pieces, (0, b""))
            if not stream:
                return 0
            if stream == STDOUT:
                self._data = data
            else:
                self._note(data)
        size = min(len(buffer), len(self._data))
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size

    def drain(self) -> None:
        """Read what comes after the logs."""
        for stream, data in self._pieces:
            if stream != STDOUT:
                self._note(data)

    def _note(self, data: bytes) -> None:
        self.errors = (self.errors + data)[:_MOST_SAID_BYTES]
