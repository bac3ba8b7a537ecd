"""The content of the files that are sent, as a listing with the hash of each: it names what every host has to have.

Each file is opened once. The listing describes one state of each file, not one state of all: a file that is written
while others are read is in it as it was when it was read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import listed_names, shown
from launcher.node.code import listing
from launcher.node.code.listing import Entry
from launcher.sync.contents import SmallFiles
from launcher.sync.selection import Selection
from launcher.wording import count

_PIECE_BYTES = 1 << 20
_ATTEMPTS = 3
# What was a file when it was selected may be a link or a FIFO by now: don't follow the one, don't wait for the other.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IS_LINK = (errno.ELOOP, errno.EMLINK)  # of O_NOFOLLOW: the second on FreeBSD
_IS_GONE = (errno.ENOENT, errno.ENOTDIR)
_IS_SOCKET = (errno.ENXIO, errno.EOPNOTSUPP)  # the second on a Mac
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
_LFS_POINTER_BYTES = 200  # fewer than that


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run's code is: its entries, sorted, their listing as it is sent, and the hash that names the tree.

    bytes_in_all: of the files; files: how many entries there are, links included; kept: the contents of small files,
    by hash.
    """

    root: Path
    entries: tuple[Entry, ...]
    listing: bytes
    hash: str
    bytes_in_all: int
    files: int
    kept: Mapping[str, bytes]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """A regular file as it was read."""

    size_bytes: int
    is_program: bool
    hash: str
    is_pointer: bool
    whole: bytes | None  # if it was read in one piece


class _Changed:
    """The answer that a file was not the same before and after it was read."""


def take_snapshot(selection: Selection) -> Snapshot:
    """Read and hash what was selected; raise UsageError for a file that can't be read, or doesn't keep still.

    A file that is gone by now is skipped.
    """
    entries, pointers = [], []
    kept = SmallFiles()
    folder = os.open(selection.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for path in selection.paths:
            found = _read(selection.root, folder, path)
            if isinstance(found, _Content):
                kind = listing.PROGRAM if found.is_program else listing.FILE
                entries.append(Entry(path, kind, found.size_bytes, found.hash))
                if found.whole is not None:
                    kept.add(found.hash, found.whole)
                if found.is_pointer:
                    pointers.append(path)
            elif found is not None:
                entries.append(Entry(path, listing.LINK, 0, found))
    finally:
        os.close(folder)
    encoded = listing.encode(entries)
    return Snapshot(
        selection.root, tuple(entries), encoded, listing.hash_listing(encoded),
        sum(entry.size for entry in entries), len(entries), kept.contents, _warn_of_pointers(pointers),
    )  # fmt: skip


def _read(root: Path, folder: int, path: str) -> _Content | str | None:
    """Return the content of a file or the target of a link; None for what is gone, or is neither."""
    try:
        for _ in range(_ATTEMPTS):
            found = _try_to_read(folder, path)
            if not isinstance(found, _Changed):
                return found
    except OSError as error:
        if error.errno in (*_IS_GONE, *_IS_SOCKET):
            return None
        fix = "make it readable, or leave it out with .launchignore"
        raise UsageError(f"{shown(root / path)} can't be read: {error.strerror}", fix) from None
    fix = "launch again when nothing writes to it, or leave it out with .launchignore"
    raise UsageError(f"{shown(root / path)} changes while launch reads it", fix)


def _try_to_read(folder: int, path: str) -> _Content | str | _Changed | None:
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno not in _IS_LINK:
            raise
        target = os.readlink(path, dir_fd=folder)
        return target if listing.is_inside(path, target) else _Changed()
    try:
        before = os.fstat(descriptor)
        return _hash(descriptor, before) if stat.S_ISREG(before.st_mode) else None
    finally:
        os.close(descriptor)


def _hash(descriptor: int, before: os.stat_result) -> _Content | _Changed:
    size, done, digest, piece = before.st_size, 0, hashlib.sha256(), b""
    while done < size and (piece := os.read(descriptor, min(size - done, _PIECE_BYTES))):
        digest.update(piece)
        done += len(piece)
    after = os.fstat(descriptor)
    if done != size or after.st_size != size or after.st_mtime_ns != before.st_mtime_ns:
        return _Changed()
    is_pointer = size < _LFS_POINTER_BYTES and piece.startswith(_LFS_POINTER)
    whole = piece if len(piece) == size else None
    return _Content(size, bool(before.st_mode & stat.S_IXUSR), digest.hexdigest(), is_pointer, whole)


def _warn_of_pointers(paths: list[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    text = f"{count(len(paths), 'file')} of Git LFS sent as pointers, without their content: {listed_names(paths)}"
    return (f"{text}; fix: git lfs pull",)
