"""What a node takes of the launcher: the contents that it wants, one after the other, however they are cut."""

from __future__ import annotations

import hashlib
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S

from launcher.node import messages
from launcher.node.code import folders, listing
from launcher.node.code.code_process import Worker
from launcher.node.code.listing import FILE, Entry

FILES = {"a": b"0123456789", "b": b"", "c": b"spam", "d": b"0123456789"}
ENTRIES = [Entry(name, FILE, len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()]
LISTING = listing.encode(ENTRIES)


def take(base: Path, *pieces: bytes, sent: bytes = LISTING) -> list[dict[str, Any]]:
    """Let a node take these pieces after the listing; return what it said, with the bits of what it wanted."""
    folders.make_base(str(base))
    tree = {"hash": listing.hash_listing(LISTING), "name": "proj", "links": [], "sub": "", "home": ""}
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE_S)
    with ours, theirs:
        for piece in (messages.encode(messages.LISTING, zlib.compress(sent)), *pieces):
            ours.sendall(piece)
        ours.shutdown(socket.SHUT_WR)
        try:
            Worker(theirs, str(base), tree, "run").place()
        finally:
            theirs.close()
            said = messages.Decoder().feed(ours.recv(1 << 16))
    return [{**header, "content": payload} for header, payload in said]


def wanted(said: list[dict[str, Any]]) -> list[bytes]:
    return [each["content"] for each in said if each["type"] == messages.WANTED and not each["needs_listing"]]


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
def test_contents_are_cut_anywhere(tmp_path: Path, pieces: list[bytes]) -> None:
    """Each is wanted once."""
    said = take(tmp_path, *pieces)
    assert wanted(said) == [b"\x07"]
    root = Path(said[-1]["path"])
    assert [(root / name).read_bytes() for name in FILES] == list(FILES.values())
    assert [each["type"] for each in take(tmp_path)] == [messages.PLACED]


def test_a_damaged_content_is_not_kept_and_is_wanted_again(tmp_path: Path) -> None:
    """Twice; then it is named."""
    said = take(tmp_path, piece(b"012345678?spam"), piece(b"0123456789"))
    assert (wanted(said), said[-1]["wrong"]) == ([b"\x07", b"\x01"], [])
    said = take(tmp_path / "other", piece(b"012345678?spam"), piece(b"012345678?"), piece(b"012345678?"))
    assert (wanted(said), said[-1]["wrong"]) == ([b"\x07", b"\x01", b"\x01"], ["a", "d"])
    assert sorted(path.name for path in Path(said[-1]["path"]).iterdir()) == ["b", "c"]


BAD = {
    "too much": piece(b"0123456789spam+"),
    "not compressed": piece(b"0123456789", is_packed=True),
    "another message": messages.encode(messages.LISTING, b"0123456789"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_piece(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises((ValueError, zlib.error)):
        take(tmp_path, bad)


def test_another_listing_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a listing with another hash"):
        take(tmp_path, sent=listing.encode(ENTRIES[1:]))


def test_the_end_of_the_supervisor_leaves_nothing_half(tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        take(tmp_path, piece(b"0123"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
