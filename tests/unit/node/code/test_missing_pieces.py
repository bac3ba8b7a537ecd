"""The pieces of code that a node takes: of a neighbour only what continues the listing's files."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from launcher.node.code.listing import FILE, LINK, Entry
from launcher.node.code.missing_pieces import Arrivals
from launcher.node.code.store import Store

NAMES_AND_SIZES = (("a", 10), ("b", 0), ("c", 4))
PACKED = zlib.compress(b"0123456789")


@pytest.fixture
def arrivals() -> Arrivals:
    entries = [Entry(name, FILE, size, "0" * 64) for name, size in NAMES_AND_SIZES]
    return Arrivals(
        Store("/nowhere"), [*entries, Entry("l", LINK, 9, "../../../a"), Entry("z", FILE, 5 << 20, "1" * 64)]
    )


def piece(payload: bytes, *parts: Any, **fields: Any) -> tuple[dict[str, Any], bytes]:
    return {"parts": [list(part) for part in parts], "is_packed": False, **fields}, payload


def read(parts: Any) -> list[tuple[int, int, bytes]]:
    return [(index, begin, bytes(data)) for index, begin, data in parts]


def test_parts_are_cut_out_of_a_piece(arrivals: Arrivals) -> None:
    found = read(arrivals.unpack(*piece(b"01234567", (2, 1, 4), (0, 5, 10), (1, 0, 0))))
    assert found == [(2, 1, b"012"), (0, 5, b"34567"), (1, 0, b"")]
    assert read(arrivals.unpack(*piece(PACKED, (0, 0, 10), is_packed=True))) == [(0, 0, b"0123456789")]


BAD = {
    "no such file": piece(b"x", (5, 0, 1)),
    "a negative number": piece(b"x", (-1, 0, 1)),
    "a link": piece(b"x", (3, 0, 1)),
    "beyond the file": piece(b"x", (0, 10, 11)),
    "before the file": piece(b"x", (0, -1, 0)),
    "backwards": piece(b"", (0, 4, 4), (0, 5, 4)),
    "too short": piece(b"x", (0, 0, 2)),
    "too long": piece(b"xyz", (0, 0, 2)),
    "too large": piece(bytes(2 << 20), (4, 0, 2 << 20)),
    "no numbers": piece(b"x", ("0", 0, 1)),
    "a float": piece(b"x", (0, 0, 1.0)),
    "a truth value": piece(b"x", (0, 0, True)),
    "four numbers": piece(b"x", (0, 0, 1, 2)),
    "no part": ({"parts": [7], "is_packed": False}, b"x"),
    "no list": ({"parts": {}, "is_packed": False}, b"x"),
    "no fields": ({}, b"x"),
    "not compressed": piece(b"0123456789", (0, 0, 10), is_packed=True),
    "compressed in part": piece(PACKED[:-6], (0, 0, 10), is_packed=True),
    "compressed and more": piece(PACKED + b"x", (0, 0, 10), is_packed=True),
    "compressed to less": piece(PACKED, (4, 0, 11), is_packed=True),
    "compressed to more": piece(PACKED, (0, 0, 9), is_packed=True),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_is_no_piece(arrivals: Arrivals, bad: tuple[dict[str, Any], bytes]) -> None:
    with pytest.raises(ValueError):
        arrivals.unpack(*bad)


def test_a_small_payload_takes_no_more_memory_than_a_piece(arrivals: Arrivals) -> None:
    bomb = zlib.compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError):
        arrivals.unpack(*piece(bomb, (4, 0, 1 << 20), is_packed=True))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def test_a_neighbour_sends_each_file_whole_and_in_order(arrivals: Arrivals) -> None:
    arrivals.unpack_next(*piece(b"0123", (0, 0, 4)))
    arrivals.unpack_next(*piece(b"456789", (0, 4, 10), (1, 0, 0)))
    arrivals.unpack_next(*piece(b"0", (4, 0, 1)))  # the one between is not wanted by all
    assert read(arrivals.unpack(*piece(b"x", (0, 0, 1)))), "the launcher is free to send anything"


@pytest.mark.parametrize(
    "bad",
    [
        piece(b"0", (0, 0, 1)), piece(b"5", (0, 5, 6)), piece(b"", (0, 4, 4)), piece(b"", (1, 0, 0)),
        piece(b"0", (2, 0, 1)), piece(b""), piece(b"456789" * 2, (0, 4, 10), (0, 4, 10)),
    ],
    ids=["again", "with a gap", "empty", "another", "a later one", "no parts", "twice"],
)  # fmt: skip
def test_a_neighbour_sends_no_other_part(arrivals: Arrivals, bad: tuple[dict[str, Any], bytes]) -> None:
    arrivals.unpack_next(*piece(b"0123", (0, 0, 4)))
    with pytest.raises(ValueError):
        arrivals.unpack_next(*bad)


def test_a_part_that_comes_again_is_dropped(tmp_path: Path) -> None:
    """A neighbour may send what the launcher sends at the same time; the descriptor is another file's by then."""
    store = Store(str(tmp_path))
    store.make()
    arrival = store.receive(Entry("a", FILE, 2, hashlib.sha256(b"ok").hexdigest()))
    assert arrival.write(0, b"ok")
    arrival.finish()
    assert not arrival.write(0, b"no")
