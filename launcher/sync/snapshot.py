"""The content of the files that are sent, as a listing with the hash of each: it names what every host has to have.

Each file is opened once. The listing describes one state of each file, not one state of all: a file that is written
while others are read is in it as it was when it was read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence

from launcher.errors import UsageError
from launcher.escapes import shown
from launcher.job.tree import Tree
from launcher.node.code import listing
from launcher.node.code.listing import Entry
from launcher.sync.selection import Selection

_PIECE_BYTES = 1 << 20
_MOST_EACH_BYTES = 256 << 10  # of a file that is kept in memory
_MOST_TOGETHER_BYTES = 32 << 20
# What was a file when it was selected may be a link or a FIFO by now: don't follow the one, don't wait for the other.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IS_LINK = (errno.ELOOP, errno.EMLINK)  # of O_NOFOLLOW: the second on FreeBSD
_IS_GONE = (errno.ENOENT, errno.ENOTDIR)
_IS_SOCKET = (errno.ENXIO, errno.EOPNOTSUPP)  # the second on a Mac


def take_snapshot(selection: Selection) -> Tree:
    """Read and hash what was selected; raise UsageError for a file that can't be read. What is gone is skipped."""
    entries: list[Entry] = []
    kept: dict[str, bytes] = {}
    room = _MOST_TOGETHER_BYTES
    folder = os.open(selection.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for path in selection.paths:
            try:
                entry, content = _read(folder, path)
            except OSError as error:
                if error.errno in (*_IS_GONE, *_IS_SOCKET):
                    continue
                fix = "make it readable, or leave it out with .launchignore"
                raise UsageError(f"{shown(selection.root / path)} can't be read: {error.strerror}", fix) from None
            if entry is not None:
                entries.append(entry)
            if entry is not None and content is not None and len(content) <= min(_MOST_EACH_BYTES, room):
                room -= len(content) if entry.content not in kept else 0
                kept[entry.content] = content
    finally:
        os.close(folder)
    return make_tree(str(selection.root), entries, kept)


def make_tree(root: str, entries: Sequence[Entry], kept: Mapping[str, bytes]) -> Tree:
    """Return the tree of these files, as it lies in the directory `root`; kept: the contents of small ones, by hash."""
    encoded = listing.encode(entries)
    return Tree(
        root, encoded, listing.hash_listing(encoded), len(entries), sum(entry.size for entry in entries),
        has_src=any(entry.path.startswith("src/") for entry in entries), kept=kept,
    )  # fmt: skip


def _read(folder: int, path: str) -> tuple[Entry | None, bytes | None]:
    """Return the entry of a file or link, and the content of a small file.

    No entry: it is neither, or a link that leads outside by now.
    """
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno not in _IS_LINK:
            raise
        target = os.readlink(path, dir_fd=folder)
        return Entry(path, listing.LINK, 0, target) if listing.is_inside(path, target) else None, None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None, None
        size, digest, piece = 0, hashlib.sha256(), b""
        while size < found.st_size and (piece := os.read(descriptor, min(found.st_size - size, _PIECE_BYTES))):
            digest.update(piece)
            size += len(piece)
    finally:
        os.close(descriptor)
    kind = listing.PROGRAM if found.st_mode & stat.S_IXUSR else listing.FILE
    return Entry(path, kind, size, digest.hexdigest()), piece if len(piece) == size else None
