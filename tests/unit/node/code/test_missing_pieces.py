"""What a node takes of the launcher: the contents that it wants, one after the other, however they are cut."""

from __future__ import annotations

import hashlib
import socket
import zlib
from pathlib import Path

import pytest

from launcher.node import messages
from launcher.node.code.listing import FILE, Entry
from launcher.node.code.missing_pieces import Intake
from launcher.node.code.store import Store

FILES = {"a": b"0123456789", "b": b"", "c": b"spam", "d": b"0123456789"}
ENTRIES = [Entry(name, FILE, len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path))
    store.make()
    return store


def take(store: Store, *pieces: bytes) -> list[bytes]:
    """Let a node take these pieces; return the bits of what it wanted."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for piece in pieces:
            ours.sendall(piece)
        taking = Intake(theirs)
        ours.shutdown(socket.SHUT_WR)
        try:
            taking.take_files(store, ENTRIES, ENTRIES)
        finally:
            theirs.close()
            said = messages.Decoder().feed(ours.recv(1 << 16))
    return [payload for header, payload in said if header["type"] == messages.WANTED]


def piece(data: bytes, *, is_packed: bool = False) -> bytes:
    return messages.encode(messages.PIECE, data, is_packed=is_packed)


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(b"0123456789spam")],
        [piece(b"0123"), piece(zlib.compress(b"456789s"), is_packed=True), piece(b"pam")],
        [piece(b"0123456789"), piece(b""), piece(b"spam")],
    ],
)
def test_contents_are_cut_anywhere(store: Store, pieces: list[bytes]) -> None:
    """Each is wanted and kept once."""
    assert take(store, *pieces) == [b"\x07"]
    assert [Path(store.path_of(entry.content)).read_bytes() for entry in ENTRIES] == list(FILES.values())
    assert take(store) == []


def test_a_damaged_content_is_not_kept_and_is_wanted_again(store: Store) -> None:
    take(store, piece(b"012345678?spam"))
    assert [store.has(entry) for entry in ENTRIES] == [False, True, True, False]
    assert take(store, piece(b"0123456789")) == [b"\x01"]


BAD = {
    "too much": piece(b"0123456789spam+"),
    "not compressed": piece(b"0123456789", is_packed=True),
    "another message": messages.encode(messages.LISTING, b"0123456789"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_piece(store: Store, bad: bytes) -> None:
    with pytest.raises((ValueError, zlib.error)):
        take(store, bad)


def test_the_end_of_the_supervisor_leaves_nothing_half(store: Store, tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        take(store, piece(b"0123"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
