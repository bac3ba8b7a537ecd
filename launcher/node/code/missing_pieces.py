"""Ask the launcher for what is missing, and take it."""

from __future__ import annotations

import socket
import zlib
from typing import Any, Dict, Iterable

from launcher.node import messages
from launcher.node.code import listing
from launcher.node.code.listing import Entry
from launcher.node.code.store import Store

Header = Dict[str, Any]


_READ_BYTES = 1 << 18
_MOST_LISTING_BYTES = 512 << 20


class Intake:
    """One node's conversation with the launcher, which the supervisor passes on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = messages.Decoder(max_header_bytes=1 << 30)
        self._heard: list[tuple[Header, bytes]] = []
        self._rest = memoryview(b"")  # of the last piece

    def say(self, kind: str, payload: bytes = b"", **fields: object) -> None:
        """Send a message."""
        self._sock.sendall(messages.encode(kind, payload, **fields))

    def read_listing(self, store: Store, name: str) -> bytes:
        """Return the listing with this hash, and ask for it, and keep it, if it isn't here."""
        try:
            data = store.read(name, _MOST_LISTING_BYTES)
        except OSError:
            data = b""
        if listing.hash_listing(data) == name:
            return data
        store.drop(name)
        self.say(messages.WANTED, needs_listing=True)
        data = zlib.decompress(self._hear(messages.LISTING)[1])
        if listing.hash_listing(data) != name:
            raise ValueError("a listing with another hash")
        arrival = store.receive(name)
        arrival.write(data)
        arrival.finish()
        return data

    def take_files(self, store: Store, entries: list[Entry], needed: Iterable[Entry]) -> None:
        """Ask for what isn't here of `needed`, and keep what comes; entries: all of the listing.

        The contents come one after the other, in the order of the listing, cut into pieces anywhere.
        """
        wanted = _find_missing(store, entries, {entry.content for entry in needed if entry.kind != listing.LINK})
        if not wanted:
            return
        bits = bytearray((len(entries) + 7) // 8)
        for index in wanted:
            bits[index // 8] |= 1 << index % 8
        self.say(messages.WANTED, bytes(bits), needs_listing=False)
        for index in wanted:
            self._take_file(store, entries[index])
        if self._rest:
            raise ValueError("more than was wanted")

    def _take_file(self, store: Store, entry: Entry) -> None:
        arrival = store.receive(entry.content)
        left = entry.size
        try:
            while left:
                data = self._read(left)
                arrival.write(data)
                left -= len(data)
        except BaseException:
            arrival.abandon()
            raise
        arrival.finish()

    def _read(self, most_bytes: int) -> memoryview:
        """Return the next bytes of the contents; a piece counts as taken once those before it are written."""
        if not self._rest:
            header, payload = self._hear(messages.PIECE)
            self._rest = memoryview(zlib.decompress(payload) if header["is_packed"] else payload)
            self.say(messages.TOOK)
        data, self._rest = self._rest[:most_bytes], self._rest[most_bytes:]
        return data

    def _hear(self, kind: str) -> tuple[Header, bytes]:
        """Wait for the next message; raise EOFError if the supervisor is gone, ValueError for another kind."""
        while not self._heard:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise EOFError
            self._heard += self._decoder.feed(data)
        header, payload = self._heard.pop(0)
        if header["type"] != kind:
            raise ValueError("%s instead of %s" % (header["type"], kind))
        return header, payload


def _find_missing(store: Store, entries: list[Entry], contents: set[str]) -> list[int]:
    """Return the places of the first entry for each content that isn't here."""
    missing = []
    for index, entry in enumerate(entries) if contents else ():
        if entry.content in contents:
            contents.remove(entry.content)
            if not store.has(entry):
                missing.append(index)
    return missing
