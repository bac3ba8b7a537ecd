"""Ask the launcher for what is missing, and take it: from the launcher, or from another node that passes it on."""

from __future__ import annotations

import os
import socket
import zlib

from launcher.node import messages
from launcher.node.code import listing
from launcher.node.code.arrivals import Arrivals
from launcher.node.code.listing import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Mapping

    from launcher.node.code.chain import ChainLink
    from launcher.node.code.store import Store

    Header = Dict[str, Any]

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
                        chain.pass_on(messages.encode(messages.PIECE, payload, **messages.fields_of(header)))
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
