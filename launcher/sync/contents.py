"""The contents of a tree's files, and the pieces in which they are sent.

Small files are as they were listed, others come from the directory or this machine's store.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.tree import Tree
from launcher.node.code import folders
from launcher.node.code.listing import LINK, Entry, decode
from launcher.node.code.store import Store, find_base
from launcher.node.messages import PIECE_BYTES

# The controller of a detached run reads what was sent to its host, where it may be removed before that is held.
CHANGED_FIX = "try again when nothing writes to it and no launch clean --code runs, or exclude it in .launchignore"
_MOST_CHARACTERS = 200  # of a path in a message
_MOST_EACH_BYTES = 256 << 10
_MOST_TOGETHER_BYTES = 32 << 20
_SAMPLE_BYTES = 64 << 10
_WORTH_IT = 0.9  # of its size, to which a sample must shrink
_LEVEL = 1  # a higher one is slower than most networks


class SmallFiles:
    """Keeps what is small enough, as long as there is room."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._room = _MOST_TOGETHER_BYTES

    def has_room(self, content_hash: str, size_bytes: int) -> bool:
        """Tell whether a content of this hash and size would be added."""
        return size_bytes <= min(_MOST_EACH_BYTES, self._room) and content_hash not in self.contents

    def add(self, content_hash: str, content: bytes) -> None:
        """Keep a content, if there is room."""
        if self.has_room(content_hash, len(content)):
            self.contents[content_hash] = content
            self._room -= len(content)


class Contents:
    """Opens the file of an entry, if a file with its hash is anywhere on this machine."""

    def __init__(self, tree: Tree, variables: Mapping[str, str]) -> None:
        """variables: of this process; they tell where this machine keeps code."""
        self._store = Store(find_base(variables))
        self._roots = [tree.root]
        if not tree.kept:  # for a controller, to which the code was sent before
            self._roots += self._hold(tree)
        self._kept = tree.kept or self._read_small(tree)

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
                file.seek(0)
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

    def _read_small(self, tree: Tree) -> dict[str, bytes]:
        """Return the small files that this machine keeps: another run may take their directory before it is held."""
        kept = SmallFiles()
        for entry in decode(tree.listing):
            is_wanted = entry.kind != LINK and kept.has_room(entry.content, entry.size)
            file = _open_regular(self._store.path_of(entry.content)) if is_wanted else None
            if file is not None:
                with file:
                    content = file.read(entry.size + 1)
                if hashlib.sha256(content).hexdigest() == entry.content:
                    kept.add(entry.content, content)
        return kept.contents


def _open_regular(path: str) -> BinaryIO | None:
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    return None


def _has_hash(file: BinaryIO, entry: Entry) -> bool:
    digest, left = hashlib.sha256(), entry.size
    try:
        while left > 0:
            data = file.read(min(left, PIECE_BYTES))
            if not data:
                return False
            digest.update(data)
            left -= len(data)
        return not file.read(1) and digest.hexdigest() == entry.content
    except OSError:
        return False


# ---- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """Parts of files for some nodes."""

    nodes: frozenset[int]
    parts: tuple[tuple[int, int, int], ...]  # each: which entry, where the part begins and ends
    payload: bytes
    is_packed: bool
    size_bytes: int  # before compression


def cut(
    wanted: Mapping[int, frozenset[int]], entries: list[Entry], open_file: Callable[[Entry], BinaryIO]
) -> Iterator[Piece]:
    """Yield the pieces in order; wanted: the nodes that need an entry, by its place in `entries`."""
    parts: list[tuple[int, int, int]] = []
    data = bytearray()
    nodes: frozenset[int] = frozenset()
    for index, places in sorted(wanted.items()):
        entry = entries[index]
        if parts and (places != nodes or len(data) + entry.size > PIECE_BYTES):
            yield _pack(nodes, parts, data)
            parts, data = [], bytearray()
        nodes = places
        with open_file(entry) as file:
            for begin, end in _spans(entry.size):
                data += _read(file, end - begin)
                parts.append((index, begin, end))
                if end < entry.size:
                    yield _pack(nodes, parts, data)
                    parts, data = [], bytearray()
    if parts:
        yield _pack(nodes, parts, data)


def _spans(size: int) -> Iterable[tuple[int, int]]:
    """Return where the parts of a file begin and end; an empty file has one."""
    return [(begin, min(size, begin + PIECE_BYTES)) for begin in range(0, max(1, size), PIECE_BYTES)]


def _read(file: BinaryIO, size: int) -> bytes:
    """Read so many bytes; a file that became shorter is filled up, and so has another hash."""
    return file.read(size).ljust(size, b"\0")


def _pack(nodes: frozenset[int], parts: list[tuple[int, int, int]], data: bytearray) -> Piece:
    content = bytes(data)
    is_worth_it = len(zlib.compress(content[:_SAMPLE_BYTES], _LEVEL)) < _WORTH_IT * len(content[:_SAMPLE_BYTES])
    payload = zlib.compress(content, _LEVEL) if is_worth_it else content
    return Piece(nodes, tuple(parts), payload, is_worth_it, len(content))
