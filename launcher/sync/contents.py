"""The contents of a tree's files, and the pieces in which they are sent.

Small files are as they were listed, others come from the directory or what this machine keeps.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.concurrency import call_in_thread
from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.tree import Tree
from launcher.node.code import folders
from launcher.node.code.listing import LINK, Entry, hash_file
from launcher.node.messages import PIECE, encode

# The controller of a detached run reads what was sent to its host, where it may be removed before that is held.
CHANGED_FIX = "try again when nothing writes to it and no launch clean --code runs, or exclude it in .launchignore"
_MOST_CHARACTERS = 200  # of a path in a message
PIECE_BYTES = 1 << 20  # of files, before compression
_SAMPLE_BYTES = 64 << 10
_WORTH_IT = 0.9  # of its size, to which a sample must shrink
_MOST_KEPT = 16  # pieces
_LEVEL = 1  # a higher one is slower than most networks


class Contents:
    """Finds the content of an entry, if a file with its hash is anywhere on this machine."""

    def __init__(self, tree: Tree, variables: Mapping[str, str]) -> None:
        """variables: of this process; they tell where this machine keeps code."""
        self._base = folders.find_base(variables)
        self._roots = [tree.root]
        if not tree.kept:  # for a controller, to which the code was sent before
            self._roots += self._hold(tree)
        self._kept = tree.kept

    def find(self, entry: Entry) -> bytes | str:
        """Return the content of a small file, else the path of a file that has it now.

        Raise UsageError if it is not as it was listed, and no small one.
        """
        if (content := self._kept.get(entry.content)) is not None:
            return content
        for path in (*(f"{root}/{entry.path}" for root in self._roots), path_of(self._base, entry.content)):
            if _has_hash(path, entry):
                return path
        path = one_line(entry.path, _MOST_CHARACTERS)
        raise UsageError(f"{path} has changed or was removed since launch listed it", CHANGED_FIX)

    def _hold(self, tree: Tree) -> list[str]:
        """Return the directory in which this machine keeps the tree, locked for as long as this process lives.

        `launch clean --code` may remove everything else during the run, and a restart needs the files.
        """
        try:
            held = folders.hold(self._base, tree.folder_name, tree.listing)
        except OSError:  # there is a file in place of the directory, or a disk is gone
            held = None
        return [held.root] if held is not None else []


def path_of(base: str, content: str) -> str:
    """Return where the launch host keeps a file of its runs; base: of `find_base`, content: its hash."""
    return f"{base}/content/{content[:2]}/{content[2:]}"


def _has_hash(path: str, entry: Entry) -> bool:
    with contextlib.suppress(OSError), open(path, "rb", opener=_open) as file:
        return hash_file(file.fileno(), entry.size) == entry.content
    return False


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


# ---- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A message with a part of what some nodes want, whose bytes all of them share."""

    header: Mapping[str, Any]
    message: bytes
    size_bytes: int
    sent_bytes: int  # of its payload, which may be compressed


def find_wanted(bits: bytes, entries: Sequence[Entry]) -> list[int]:
    """Return the places in the listing of the files that a node wants; bits: one for each place."""
    most = min(len(entries), 8 * len(bits))
    return [place for place in range(most) if bits[place // 8] >> place % 8 & 1 and entries[place].kind != LINK]


class Pieces:
    """Reads and compresses each piece of a tree once, for all the nodes that want the same at about the same time.

    The contents that a node wants are one stream, cut into pieces of PIECE_BYTES. However many nodes there are and
    however far apart they get, _MOST_KEPT pieces are kept besides those on their way. For a node that is further
    behind, its pieces are made again.
    """

    def __init__(self, entries: Sequence[Entry], find: Callable[[Entry], bytes | str]) -> None:
        """find: returns a content, or the path of a file that is as it was listed."""
        self._entries = entries
        self._find = find
        self._found: dict[int, bytes | str] = {}  # by the place in the listing: to find a file hashes all of it
        self._kept: dict[tuple[bytes, int], Piece] = {}  # the one that was used last is at the end
        self._lay_out = functools.lru_cache(_MOST_KEPT)(self._find_starts)  # once for all pieces of a node
        self._making = asyncio.Lock()

    async def get(self, bits: bytes, begin: int) -> Piece:
        """Return the piece that begins there; raise UsageError if a file has changed. bits: what is wanted."""
        async with self._making:  # whoever waits finds it made
            piece = self._kept.pop((bits, begin), None)
            if piece is None:
                piece = await call_in_thread(lambda: self._make(bits, begin))
            self._kept[bits, begin] = piece
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return piece

    def _find_starts(self, bits: bytes) -> tuple[list[int], list[int]]:
        """Return the places in the listing of what is wanted, and where the content of each begins in the stream."""
        wanted = find_wanted(bits, self._entries)
        sizes = (self._entries[index].size for index in wanted)
        return wanted, [0, *itertools.accumulate(sizes)][: len(wanted)]

    def _make(self, bits: bytes, begin: int) -> Piece:
        wanted, starts = self._lay_out(bits)
        parts = []
        for number in range(max(bisect.bisect_right(starts, begin) - 1, 0), len(wanted)):
            index, place = wanted[number], starts[number]
            if place >= begin + PIECE_BYTES:
                break
            first, last = max(begin - place, 0), min(begin + PIECE_BYTES - place, self._entries[index].size)
            parts += [self._read(index, first, last)] if first < last else []
        content = b"".join(parts)
        sample = content[:_SAMPLE_BYTES]
        is_packed = len(zlib.compress(sample, _LEVEL)) < _WORTH_IT * len(sample)
        payload = zlib.compress(content, _LEVEL) if is_packed else content
        header = {"type": PIECE, "is_packed": is_packed}
        return Piece(header, encode(PIECE, payload, is_packed=is_packed), len(content), len(payload))

    def _read(self, index: int, begin: int, end: int) -> bytes:
        """Read a part; a file that became shorter is filled up, and so has another hash."""
        if index not in self._found:
            self._found[index] = self._find(self._entries[index])
        found, data = self._found[index], b""
        if isinstance(found, bytes):
            return found[begin:end]
        with contextlib.suppress(OSError), open(found, "rb", opener=_open) as file:
            data = os.pread(file.fileno(), end - begin, begin)
        return data.ljust(end - begin, b"\0")
