"""Ask the launcher for what is missing, and take it: from the launcher, or from another node that passes it on.

The files come in pieces, from both at once.
"""

from __future__ import annotations

import os
import socket
import threading
import zlib

from launcher.node import messages
from launcher.node.code import listing
from launcher.node.code.listing import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Tuple

    from launcher.node.code.chain import ChainLink
    from launcher.node.code.store import Arrival, Store

    Header = Dict[str, Any]
    Parts = List[Tuple[int, int, memoryview]]  # each: which entry, where the part begins, its bytes

READ_BYTES = 1 << 18
MOST_LISTING_BYTES = 512 << 20


class Intake:
    """One node's conversation with the launcher, which the supervisor passes on."""

    def __init__(self, sock: socket.socket, env: Mapping[str, str]) -> None:
        """env: of the login, which knows this node's address."""
        self._sock = sock
        self._env = env
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._heard: list[tuple[Header, bytes]] = []

    def say(self, kind: str, payload: bytes = b"", **fields: object) -> None:
        """Send a message."""
        self._sock.sendall(messages.encode(kind, payload, **fields))

    def read_listing(self, store: Store, name: str, group: str, *, is_kept: bool) -> bytes:
        """Return the listing with this hash, and ask for it if it isn't here; is_kept: keep it as all files are."""
        try:
            data = store.read(name, MOST_LISTING_BYTES)
        except OSError:
            data = b""
        if listing.hash_listing(data) == name:
            return data
        if is_kept:
            store.drop(name)
        self.say(messages.WANTED, group=group, needs_listing=True)
        header, payload = self._hear()
        if header["type"] != messages.LISTING:
            raise ValueError("%s instead of a listing" % header["type"])
        data = zlib.decompress(payload)
        if listing.hash_listing(data) != name:
            raise ValueError("a listing with another hash")
        if is_kept:
            arrival = store.receive(Entry("listing", listing.FILE, len(data), name))
            arrival.write(0, data)
            arrival.finish()
        return data

    def take_files(self, store: Store, entries: list[Entry], needed: Iterable[Entry], group: str = "") -> bool:
        """Ask for what isn't here of `needed`, and take it; return whether this node is to write.

        entries: all of the listing.
        """
        bits = _mark_missing(store, entries, {entry.content for entry in needed if entry.kind != listing.LINK})
        self.say(messages.WANTED, bits, group=group, needs_listing=False)
        arrivals = Arrivals(store, entries)
        chain: ChainLink | None = None
        try:
            while True:
                header, payload = self._hear()
                if header["type"] == messages.MEET:
                    chain = self._meet(arrivals, header["number"], payload)
                elif header["type"] == messages.JOIN:
                    following, has_previous = header["following"], header["has_previous"]
                    is_complete = chain is not None and chain.join(following, has_previous=has_previous)
                    self.say(messages.JOINED, is_complete=is_complete)
                elif header["type"] == messages.PIECE:
                    parts = arrivals.unpack(header, payload)
                    if chain is not None and header["is_for_chain"]:
                        chain.pass_on(messages.encode_again(header, payload))
                    arrivals.take(parts)
                    self.say(messages.TOOK)
                else:
                    if chain is not None and header["is_in_chain"]:
                        chain.finish()
                    arrivals.close()
                    return bool(header["is_writer"])
        finally:
            if chain is not None:
                chain.close()

    def _meet(self, arrivals: Arrivals, number: int, pem: bytes) -> ChainLink | None:
        """Open a port for another node, and answer where it is; a port of 0 says that it is impossible."""
        from launcher.node.code import chain

        try:
            link = chain.ChainLink(number, pem, arrivals.unpack_next, arrivals.take_safely)
        except (OSError, ValueError, AttributeError):  # AttributeError: the C library has no memfd
            self.say(messages.MET, port=0, addresses=[])
            return None
        self.say(messages.MET, port=link.port, addresses=chain.list_addresses(self._env))
        return link

    def _hear(self) -> tuple[Header, bytes]:
        """Wait for the next message; exit if the supervisor is gone."""
        while not self._heard:
            data = self._sock.recv(READ_BYTES)
            if not data:
                os._exit(0)
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)


def _mark_missing(store: Store, entries: list[Entry], contents: set[str]) -> bytes:
    """Return a bit for each entry, set for the first of those that lack the same content."""
    bits = bytearray((len(entries) + 7) // 8)
    for index, entry in enumerate(entries) if contents else ():
        if entry.content in contents:
            contents.remove(entry.content)
            if not store.has(entry):
                bits[index // 8] |= 1 << index % 8
    return bytes(bits)


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
        if size > messages.PIECE_BYTES:
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
