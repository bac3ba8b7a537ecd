"""Take the logs of a run from the host that controls it."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from launcher.errors import LauncherError
from launcher.output.lines import STDOUT
from launcher.private_files import make_private, open_private

_READ_BYTES = 1 << 20


def take_logs(pieces: Iterator[tuple[int, bytes]], host: str, run_id: str, base: Path) -> tuple[Path | None, str]:
    """Write the archive that a launcher on a host sends to `base`/`run_id`; return that directory, and what it said.

    pieces: its output, as pairs of stream and bytes. The directory appears whole, and replaces an earlier one. Nothing
    else is written, whatever the archive holds. Raise LauncherError for a broken archive or a full disk.
    """
    stream = _Stream(pieces)
    fresh, folder = base / f".{run_id}.new", base / run_id
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        make_private(fresh, base)
        try:
            with gzip.GzipFile(fileobj=stream) as plain:
                _unpack(plain, run_id, fresh)
            _replace(folder, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not stream.errors:
            raise LauncherError(f"the logs of {host} arrived damaged: {error}", "try again") from None
        return None, stream.errors.decode("utf-8", "replace")
    except OSError as error:
        raise LauncherError(f"can't write {base}: {error.strerror}", "name another directory with --log-dir") from None
    return folder, stream.errors.decode("utf-8", "replace")


def _unpack(plain: gzip.GzipFile, run_id: str, fresh: Path) -> None:
    """Write the directories and files of a run, and read to the end, where the checksum is."""
    with tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            top, *names = PurePosixPath(member.name).parts or ("",)
            if top != run_id or not names or ".." in names or not member.name.isprintable():
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


def _replace(folder: Path, fresh: Path) -> None:
    """Let a directory replace another one, or a link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)


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
                self.errors += data
        size = min(len(buffer), len(self._data))
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size
