"""The files that are arriving, in pieces from the launcher and from other nodes at once."""

from __future__ import annotations

import threading
import zlib

from launcher.node.code import listing
from launcher.node.code.store import PIECE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from launcher.node.code.listing import Entry
    from launcher.node.code.store import Arrival, Store

    Parts = List[Tuple[int, int, memoryview]]  # each: which entry, where the part begins, its bytes


class Arrivals:
    """Takes pieces; several threads may call `take`, also for parts of one file."""

    def __init__(self, store: Store, entries: list[Entry]) -> None:
        self._store = store
        self._entries = entries
        self._files: dict[int, Arrival] = {}  # by the entry's place in the listing
        self._lock = threading.Lock()
        self._fault: OSError | None = None
        self._is_closed = False
        self._next = (0, 0)  # what a neighbour may send: an entry or a later one, and how much of it has come

    def unpack(self, header: Dict[str, Any], payload: bytes) -> Parts:
        """Return the parts in a piece; raise ValueError unless they are parts of the listing's files, and all of it."""
        found = header.get("parts")
        spans = [_read_span(part, self._entries) for part in (found if isinstance(found, list) else [found])]
        size = sum(end - begin for _, begin, end in spans)
        if size > PIECE_BYTES:
            raise ValueError("a piece of %d bytes" % size)
        data = memoryview(_inflate(payload, size) if header.get("is_packed") else payload)
        if len(data) != size:
            raise ValueError("a piece of %d bytes instead of %d" % (len(data), size))
        parts = []
        for index, begin, end in spans:
            parts.append((index, begin, data[: end - begin]))
            data = data[end - begin :]
        return parts

    def unpack_next(self, header: Dict[str, Any], payload: bytes) -> Parts:
        """Return what `unpack` returns for a piece of a neighbour, which sends each file whole, in the listing's order.

        So it can neither send for ever nor have many files open.
        """
        parts = self.unpack(header, payload)
        if not parts:
            raise ValueError("an empty piece")
        for index, begin, data in parts:
            first, place = self._next
            end, size = begin + len(data), self._entries[index].size
            is_next = (index, begin) == (first, place) if place else index >= first and not begin
            if not is_next or (begin == end and size):
                raise ValueError("a part out of order")
            self._next = (index, end) if end < size else (index + 1, 0)
        return parts

    def take(self, parts: Parts) -> None:
        """Take parts of files."""
        for index, begin, data in parts:
            with self._lock:
                if self._is_closed:
                    return
                if index not in self._files:
                    self._files[index] = self._store.receive(self._entries[index])
                file = self._files[index]
            if file.write(begin, data):
                with self._lock:
                    is_last = self._files.get(index) is file
                    if is_last:
                        del self._files[index]
                if is_last:
                    file.finish()

    def take_safely(self, parts: Parts) -> None:
        """Take parts in a thread of its own: `close` raises what was wrong with this node's disk."""
        try:
            self.take(parts)
        except OSError as error:
            self._fault = error

    def close(self) -> None:
        """Drop what isn't complete; raise what went wrong in another thread."""
        with self._lock:
            self._is_closed = True
            files, self._files = list(self._files.values()), {}
        for file in files:
            file.abandon()
        if self._fault is not None:
            raise self._fault


def _read_span(value: object, entries: list[Entry]) -> Tuple[int, int, int]:
    """Return which entry a part belongs to, and where it begins and ends."""
    if not (isinstance(value, list) and [type(number) for number in value] == [int, int, int]):
        raise ValueError("not a part: %.80r" % (value,))
    index, begin, end = value
    if not 0 <= index < len(entries) or entries[index].kind == listing.LINK:
        raise ValueError("no file has the number %d" % index)
    if not 0 <= begin <= end <= entries[index].size:
        raise ValueError("%d to %d of a file with %d bytes" % (begin, end, entries[index].size))
    return index, begin, end


def _inflate(payload: bytes, size: int) -> bytes:
    """Return what was compressed; raise ValueError if that isn't so many bytes, and never hold more than that."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(payload, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("not %d bytes, compressed" % size)
    return data
