"""The logs of a run, from the host that controls it: how they are sent there, and taken here."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import secrets
import shutil
import stat
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from launcher.errors import LauncherError, UsageError
from launcher.output.lines import STDOUT
from launcher.output.output_streams import OutputStreams
from launcher.private_files import make_private, open_private, write_private
from launcher.runs.run_list import ListedRun, Way

_READ_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 20  # of one member, before its content
_MOST_COPIES = 99
_MOST_SAID_BYTES = 1 << 16
_LEFT_S = 86400.0  # a fetch that was killed leaves what it had
_ORIGIN = "fetched.json"  # in a copy: which run it is of


def send_logs(run: ListedRun, streams: OutputStreams) -> int:
    """Write the directory of a run's logs to stdout, as a tar archive whose first directory is the run's id."""
    if not run.folder.is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        gone = () if run.is_alive is False else (FileNotFoundError,)  # a run that is still writing replaces files
        for path in [run.folder, *sorted(run.folder.rglob("*"))]:
            if path.suffix != ".new" and not path.is_symlink():
                with contextlib.suppress(*gone):
                    name = Path(run.id, path.relative_to(run.folder))
                    archive.add(path, arcname=name, recursive=False)
    return 0


class RemoteOutput(Protocol):
    """The output of a launcher on a host."""

    exit_code: int | None  # once all was read

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield pairs of stream and bytes; raise TransportError if it breaks off."""


def take_logs(output: RemoteOutput, way: Way, run_id: str, base: Path) -> tuple[Path | None, str]:
    """Write the archive that a launcher on a host sends to `base`/`run_id`; return that directory, and what it said.

    The directory appears whole, and replaces an earlier copy of this run from this host; where another one has that
    name, it gets the next free one, `run_id`.2. Several may do this at once: each ends with a whole copy. Nothing else
    is written, whatever the archive holds. Raise LauncherError for a broken archive or a full disk.
    """
    stream = _Stream(output.pieces())
    fresh = base / f".{run_id}.{secrets.token_hex(4)}.new"
    origin = {"run": run_id, "host": way.name, "user": way.user, "port": way.port}
    try:
        _remove_left(base, run_id)
        make_private(fresh, base)
        try:
            with gzip.GzipFile(fileobj=stream) as plain:
                _unpack(plain, run_id, fresh)
            stream.drain()
            folder = None
            if not output.exit_code:
                write_private(fresh / _ORIGIN, json.dumps(origin))
                folder = _put(fresh, base, origin)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        if not stream.errors and not output.exit_code:
            raise LauncherError(f"the logs of {way.name} arrived damaged: {error}", "try again") from None
        folder = None
    except OSError as error:
        raise LauncherError(f"can't write {base}: {error.strerror}", "name another directory with --log-dir") from None
    return folder, stream.errors.decode("utf-8", "replace")


def _unpack(plain: gzip.GzipFile, run_id: str, fresh: Path) -> None:
    """Write the directories and files of a run, and read to the end, where the checksum is."""
    source = _Bounded(plain)
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
            source.allow(member.size if member.isfile() and not member.issparse() else 0)
            top, *names = PurePosixPath(member.name).parts or ("",)
            is_wanted = top == run_id and names and names[0] != _ORIGIN and ".." not in names
            if not is_wanted or not member.name.isprintable():
                continue
            path = fresh.joinpath(*names)
            if member.isdir():
                make_private(path, fresh, exist_ok=True)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                with open(path, "xb", opener=open_private) as file:
                    shutil.copyfileobj(content, file)
    while plain.read(_READ_BYTES):
        pass


class _Bounded(io.RawIOBase):
    """A stream in which no member's header is longer than memory has room for: tarfile reads it whole."""

    def __init__(self, plain: gzip.GzipFile) -> None:
        super().__init__()
        self._plain = plain
        self.allow(0)

    def allow(self, size_bytes: int) -> None:
        """Let a member's content be read, and the header of the next one."""
        self._left = size_bytes + _MOST_HEADER_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = self._plain.readinto(buffer)
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"a header of more than {_MOST_HEADER_BYTES} bytes")
        return size


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
        """Read what comes after the archive."""
        for stream, data in self._pieces:
            if stream != STDOUT:
                self._note(data)

    def _note(self, data: bytes) -> None:
        self.errors = (self.errors + data)[:_MOST_SAID_BYTES]
