"""Files cut into pieces: every byte once, in order, for exactly the nodes that lack it."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.code.listing import FILE, Entry
from launcher.node.messages import PIECE_BYTES, TREE_WINDOW_BYTES
from launcher.sync.contents import Piece, cut

ONE = frozenset({0})
MIB = 1 << 20


def cut_files(
    files: Sequence[bytes], nodes: Mapping[int, frozenset[int]] | None = None, found: Sequence[bytes] = ()
) -> list[Piece]:
    """Return the pieces of these files; found: what is read of them, if they have changed since they were listed."""
    entries = [
        Entry(str(number), FILE, len(data), hashlib.sha256(data).hexdigest()) for number, data in enumerate(files)
    ]
    opened: list[BinaryIO] = []

    def open_file(entry: Entry) -> BinaryIO:
        opened.append(io.BytesIO((found or files)[int(entry.path)]))
        return opened[-1]

    pieces = list(cut(nodes or dict.fromkeys(range(len(files)), ONE), entries, open_file))
    assert all(file.closed for file in opened)
    return pieces


def join(pieces: Sequence[Piece]) -> dict[int, dict[int, bytes]]:
    """Return what each node has then: of each file, the parts in the order in which they come."""
    nodes: dict[int, dict[int, bytes]] = {}
    for piece in pieces:
        data = zlib.decompress(piece.payload) if piece.is_packed else piece.payload
        assert len(data) == piece.size_bytes == sum(end - begin for _, begin, end in piece.parts) <= PIECE_BYTES
        for index, begin, end in piece.parts:
            for node in piece.nodes:
                file = nodes.setdefault(node, {})
                assert len(file.get(index, b"")) == begin, "a part comes after the one before it"
                file[index] = file.get(index, b"") + data[: end - begin]
            data = data[end - begin :]
    return nodes


def test_nothing_is_no_piece() -> None:
    assert cut_files([]) == []


def test_small_files_share_a_piece() -> None:
    (piece,) = cut_files([b"print(1)\n", b"", b"x" * 100])
    assert piece.parts == ((0, 0, 9), (1, 0, 0), (2, 0, 100))
    assert (piece.nodes, piece.size_bytes) == (ONE, 109)


def test_one_empty_file_is_a_piece() -> None:
    (piece,) = cut_files([b""])
    assert (piece.parts, piece.payload, piece.is_packed, piece.size_bytes) == (((0, 0, 0),), b"", False, 0)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([MIB], [[(0, 0, MIB)]]),
        ([MIB + 1], [[(0, 0, MIB)], [(0, MIB, MIB + 1)]]),
        ([2 * MIB], [[(0, 0, MIB)], [(0, MIB, 2 * MIB)]]),
        ([MIB - 1, 1, 1], [[(0, 0, MIB - 1), (1, 0, 1)], [(2, 0, 1)]]),
        ([1, MIB], [[(0, 0, 1)], [(1, 0, MIB)]]),
        ([MIB, 1], [[(0, 0, MIB)], [(1, 0, 1)]]),
        ([MIB, 0, 1], [[(0, 0, MIB), (1, 0, 0)], [(2, 0, 1)]]),
        ([MIB + 5, 7], [[(0, 0, MIB)], [(0, MIB, MIB + 5), (1, 0, 7)]]),
        ([3, MIB + 5, 7], [[(0, 0, 3)], [(1, 0, MIB)], [(1, MIB, MIB + 5), (2, 0, 7)]]),
    ],
)  # fmt: skip
def test_where_pieces_begin_and_end(sizes: list[int], parts: list[list[tuple[int, int, int]]]) -> None:
    files = [os.urandom(size) for size in sizes]
    pieces = cut_files(files)
    assert [list(piece.parts) for piece in pieces] == parts
    assert join(pieces) == {0: dict(enumerate(files))}


def test_what_shrinks_is_compressed_and_the_rest_is_sent_as_it_is() -> None:
    text, noise = cut_files([b"spam " * 20000, os.urandom(MIB)])
    assert text.is_packed and len(text.payload) < 2000
    assert not noise.is_packed and len(noise.payload) == MIB
    (mixed,) = cut_files([os.urandom(64 << 10) + bytes(MIB // 2)])
    assert not mixed.is_packed, "its beginning decides"


def test_files_for_other_nodes_are_in_other_pieces() -> None:
    both, second = frozenset({0, 1}), frozenset({1})
    pieces = cut_files([b"a", b"b", b"c", b"d"], {0: both, 1: both, 2: second, 3: both})
    assert [(piece.nodes, piece.parts) for piece in pieces] == [
        (both, ((0, 0, 1), (1, 0, 1))), (second, ((2, 0, 1),)), (both, ((3, 0, 1),)),
    ]  # fmt: skip
    assert join(pieces) == {0: {0: b"a", 1: b"b", 3: b"d"}, 1: {0: b"a", 1: b"b", 2: b"c", 3: b"d"}}


def test_the_rest_of_a_large_file_goes_to_nobody_else() -> None:
    large, small = os.urandom(MIB + 1), b"x"
    pieces = cut_files([large, small], {0: frozenset({0}), 1: frozenset({1})})
    assert join(pieces) == {0: {0: large}, 1: {1: small}}


def test_files_that_nobody_wants_are_not_opened() -> None:
    assert join(cut_files([b"a", b"b", b"c"], {1: ONE})) == {0: {1: b"b"}}


@pytest.mark.parametrize("left", [0, 1, MIB, MIB + 1])
def test_a_file_that_shrinks_while_it_is_read_gets_another_hash(left: int) -> None:
    """Its size is what was listed, so that the files after it are what they are."""
    large = os.urandom(MIB + 9)
    pieces = cut_files([large, b"next"], found=[large[:left], b"next"])
    assert join(pieces) == {0: {0: large[:left].ljust(MIB + 9, b"\0"), 1: b"next"}}


def test_a_file_that_grows_is_cut_off() -> None:
    pieces = cut_files([b"old", b"next"], found=[b"old and more", b"next"])
    assert join(pieces) == {0: {0: b"old", 1: b"next"}}


def test_the_window_holds_several_pieces() -> None:
    """Or a slow host would wait for the launcher after each."""
    assert TREE_WINDOW_BYTES >= 2 * PIECE_BYTES


@given(
    st.lists(
        st.tuples(st.integers(0, 400) | st.integers(MIB - 2, MIB + 2), st.frozensets(st.integers(0, 2), min_size=1)),
        max_size=8,
    )
)
def test_all_nodes_get_all_that_they_want(wanted: list[tuple[int, frozenset[int]]]) -> None:
    files = [bytes([number]) * size for number, (size, _) in enumerate(wanted)]
    pieces = cut_files(files, {number: nodes for number, (_, nodes) in enumerate(wanted)})
    expected: dict[int, dict[int, bytes]] = {}
    for number, (_, nodes) in enumerate(wanted):
        for node in nodes:
            expected.setdefault(node, {})[number] = files[number]
    assert join(pieces) == expected
