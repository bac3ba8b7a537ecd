"""The contents of a tree's files, and the pieces in which they are sent.

Small files are as they were listed, others come from the directory or this machine's store.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from launcher.concurrency import call_in_thread
from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.tree import Tree
from launcher.node.code import folders
from launcher.node.code.listing import Entry, hash_file
from launcher.node.code.store import Store, find_base
from launcher.node.messages import PIECE, PIECE_BYTES, encode

# The controller of a detached run reads what was sent to its host, where it may be removed before that is held.
CHANGED_FIX = "try again when nothing writes to it and no launch clean --code runs, or exclude it in .launchignore"
_MOST_CHARACTERS = 200  # of a path in a message
_SAMPLE_BYTES = 64 << 10
_WORTH_IT = 0.9  # of its size, to which a sample must shrink
_KEPT_BYTES = 16 << 20
_MOST_OPEN = 32
_LEVEL = 1  # a higher one is slower than most networks


class Contents:
    """Opens the file of an entry, if a file with its hash is anywhere on this machine."""

    def __init__(self, tree: Tree, variables: Mapping[str, str]) -> None:
        """variables: of this process; they tell where this machine keeps code."""
        self._store = Store(find_base(variables))
        self._roots = [tree.root]
        if not tree.kept:  # for a controller, to which the code was sent before
            self._roots += self._hold(tree)
        self._kept = tree.kept

    def open(self, entry: Entry) -> BinaryIO:
        """Return the file; raise UsageError if it is not as it was listed, and no small one."""
        if (content := self._kept.get(entry.content)) is not None:
            return io.BytesIO(content)
        paths = [f"{root}/{entry.path}" for root in self._roots]
        for path in (*paths, self._store.path_of(entry.content)):
            file = _open_regular(path)
            if file is None:
                continue
            if _has_hash(file, entry):
                return file
            file.close()
        path = one_line(entry.path, _MOST_CHARACTERS)
        raise UsageError(f"{path} has changed or was removed since launch listed it", CHANGED_FIX)

    def _hold(self, tree: Tree) -> list[str]:
        """Return the directory in which this machine keeps the tree, locked for as long as this process lives.

        `launch clean --code` may remove everything else during the run, and a restart needs the files.
        """
        try:
            held = folders.hold(self._store, tree.folder_name, tree.listing)
        except OSError:  # there is a file in place of the directory, or a disk is gone
            held = None
        return [held.root] if held is not None else []


def _open_regular(path: str) -> BinaryIO | None:
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    return None


def _has_hash(file: BinaryIO, entry: Entry) -> bool:
    with contextlib.suppress(OSError):
        return hash_file(file.fileno(), entry.size) == entry.content
    return False


# ---- pieces ----------------------------------------------------------------------------------------------------------

Parts = tuple[tuple[int, int, int], ...]  # each: the file's place in the listing, where the part begins and ends


@dataclass(frozen=True, slots=True)
class Piece:
    """A message with parts of files, whose bytes all the nodes share that it goes to."""

    header: Mapping[str, Any]
    message: bytes
    sent_bytes: int  # of its payload


def cut(wanted: Iterable[int], entries: Sequence[Entry]) -> Iterator[Parts]:
    """Yield which parts of the wanted files go together in a piece, in order; an empty file needs none."""
    parts: list[tuple[int, int, int]] = []
    room = PIECE_BYTES
    for index in wanted:
        size = entries[index].size
        for begin in range(0, size, PIECE_BYTES):
            end = min(size, begin + PIECE_BYTES)
            if end - begin > room:
                yield tuple(parts)
                parts, room = [], PIECE_BYTES
            parts.append((index, begin, end))
            room -= end - begin
    if parts:
        yield tuple(parts)


class Pieces:
    """Reads and compresses each piece of a tree once, for all the nodes that want it at about the same time.

    However many nodes there are and however far apart they get, about _KEPT_BYTES of pieces are kept besides those on
    their way, and _MOST_OPEN large files are open. For a node that is further behind, its pieces are made again.
    """

    def __init__(self, entries: Sequence[Entry], open_file: Callable[[Entry], BinaryIO]) -> None:
        """open_file: returns a file that is as it was listed."""
        self._entries = entries
        self._open_file = open_file
        self._open: dict[int, BinaryIO] = {}  # large files, by their place in the listing
        self._kept: dict[Parts, Piece] = {}  # the one that was used last is at the end
        self._kept_bytes = 0
        self._making = asyncio.Lock()

    async def get(self, parts: Parts) -> Piece:
        """Return the piece with these parts; raise UsageError if a file has changed."""
        async with self._making:  # whoever waits finds it made
            piece = self._kept.pop(parts, None)
            if piece is None:
                piece = await call_in_thread(lambda: self._make(parts))
                self._kept_bytes += len(piece.message)
            self._kept[parts] = piece
            while self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))).message)
        return piece

    def close(self) -> None:
        """Close all files."""
        for file in [*self._open.values()]:  # a thread may be reading from one
            file.close()

    def _make(self, parts: Parts) -> Piece:
        content = b"".join(self._read(*part) for part in parts)
        sample = content[:_SAMPLE_BYTES]
        is_packed = len(zlib.compress(sample, _LEVEL)) < _WORTH_IT * len(sample)
        payload = zlib.compress(content, _LEVEL) if is_packed else content
        header = {"type": PIECE, "is_packed": is_packed}
        return Piece(header, encode(PIECE, payload, is_packed=is_packed), len(payload))

    def _read(self, index: int, begin: int, end: int) -> bytes:
        """Read a part; a file that became shorter is filled up, and so has another hash."""
        entry = self._entries[index]
        file = self._open.pop(index, None) or self._open_file(entry)
        file.seek(begin)
        data = file.read(end - begin).ljust(end - begin, b"\0")
        if entry.size > PIECE_BYTES:  # others want the rest of it; to open it hashes all of it
            self._open[index] = file
            if len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
        else:
            file.close()
        return data
