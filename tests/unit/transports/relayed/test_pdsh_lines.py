"""Lines with labels: whole ones come as they are, and the end of a long one never passes for a line of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.transports.base import READ_BYTES
from launcher.transports.relayed.pdsh_lines import MAX_LINE_BYTES, whole_lines

FORGED = b"b: ssh killed by signal 9"


def read(pieces: Sequence[bytes]) -> list[bytes]:
    """Return the lines of a pipe into which these pieces are written."""
    read_end, write_end = os.pipe()

    def write() -> None:
        with os.fdopen(write_end, "wb", buffering=0) as stream:
            for piece in pieces:
                stream.write(piece)

    writing = Thread(target=write)
    writing.start()
    with os.fdopen(read_end, "rb", buffering=0) as stream:
        lines = list(whole_lines(stream))
    writing.join()
    return lines


@given(text=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_whole_lines_come_as_they_are(text: bytes, cuts: list[int]) -> None:
    pieces = [text[start:end] for start, end in pairwise([0, *sorted(cuts), 200])]
    assert read(pieces) == text.split(b"\n")[:-1]


@pytest.mark.parametrize("size", [MAX_LINE_BYTES + READ_BYTES, 5 * MAX_LINE_BYTES + 17])
def test_what_follows_on_too_much_is_dropped_with_it(size: int) -> None:
    long = b"x" * size
    assert read([b"a: 1\na: ", long, FORGED, b"\na: 2\n", b"a: ", long, b"\n", FORGED, b"\n"])[:2] == [b"a: 1", b"a: 2"]
    assert FORGED not in read([b"a: 1\na: ", long, FORGED, b"\na: 2\n"])
    for at in range(MAX_LINE_BYTES - 3, MAX_LINE_BYTES + 4):
        assert read([b"x" * at, FORGED, b"\n"]) in ([], [b"x" * at + FORGED])
