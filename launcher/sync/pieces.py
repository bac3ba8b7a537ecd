"""Cut the files that are missing on the hosts into pieces, each compressed once for all hosts that need it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from launcher.node.code.listing import Entry
from launcher.node.messages import PIECE_BYTES

_SAMPLE_BYTES = 64 << 10
_WORTH_IT = 0.9  # of its size, to which a sample must shrink
_LEVEL = 1  # a higher one is slower than most networks


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
