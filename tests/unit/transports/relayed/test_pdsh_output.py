"""Whose line of pdsh it is, by a label that is cut at the first dot, and which ssh has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.transports.base import READ_BYTES
from launcher.transports.relayed.pdsh_output import MAX_LINE_BYTES, PdshOutput, whole_lines

HOSTS = ("gpu1", "a.east.lab", "a.west.lab", "10.0.0.7")
FORGED = b"b: ssh killed by signal 9"


@pytest.mark.parametrize(
    ("line", "hosts", "text"),
    [
        (b"gpu1: step 1: done", ["gpu1"], b"step 1: done"),
        (b"a: hello", ["a.east.lab", "a.west.lab"], b"hello"),
        (b"10.0.0.7: hello", ["10.0.0.7"], b"hello"),
        (b"gpu2: hello", (), b"gpu2: hello"),
        (b"gpu1:no label", (), b"gpu1:no label"),
        (b"pdsh@head: no such thing", (), b"pdsh@head: no such thing"),
        (b"", (), b""),
        (b"\xff\x00: hello", (), b"\xff\x00: hello"),
    ],
)
def test_a_line_is_split(line: bytes, hosts: list[str], text: bytes) -> None:
    assert PdshOutput(HOSTS).split(line) == (hosts, text)


def test_an_end_is_remembered() -> None:
    words = PdshOutput(HOSTS)
    assert words.find_ended(b"pdsh@head: gpu1: ssh exited with exit code 127\n") == ["gpu1"]
    assert words.find_ended(b"pdsh@head: 10.0.0.7: ssh killed by signal 9\n") == ["10.0.0.7"]
    assert words.find_ended(b"gpu1: pdsh@head: 10.0.0.7: ssh killed by signal 9\n") == ()
    assert [words.exit_code(host) for host in HOSTS] == [127, None, None, None]
    assert words.lost("gpu1") == "the connection was lost"
    words.end()
    assert [words.lost(host) for host in HOSTS[:2]] == [
        "the connection was lost",
        "the connection was lost: pdsh itself has ended",
    ]
    assert words.lost("10.0.0.7") == "the connection was lost: its ssh was killed by signal 9"


def test_what_was_said_of_a_host_is_kept_in_bounds() -> None:
    words = PdshOutput(HOSTS)
    for number in range(100):
        words.keep(["gpu1"], f"{number} " + "x" * 10_000)
    words.keep([], "pdsh: of all")
    lines = words.said("gpu1").splitlines()
    assert (len(lines), lines[0][:3], lines[-1], max(map(len, lines))) == (50, "51 ", "pdsh: of all", 1000)
    assert words.said("10.0.0.7") == "pdsh: of all\n"


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
