"""Whose line of pdsh it is, by a label that is cut at the first dot; who has logged in, and which ssh has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.transports.base import READ_BYTES
from launcher.transports.ssh.pdsh_output import MAX_LINE_BYTES, PdshOutput, whole_lines

HOSTS = ("gpu1", "a.east.lab", "a.west.lab", "10.0.0.7")
FORGED = b"b: ssh killed by signal 9"


@pytest.mark.parametrize(
    ("line", "hosts", "text"),
    [
        (b"gpu1: step 1: done", ["gpu1"], "step 1: done"),
        (b"a: hello\r", ["a.east.lab", "a.west.lab"], "hello"),
        (b"10.0.0.7: hello", ["10.0.0.7"], "hello"),
        (b"gpu2: hello", HOSTS, "gpu2: hello"),
        (b"gpu1:no label", HOSTS, "gpu1:no label"),
        (b"pdsh@head: no such thing", HOSTS, "pdsh@head: no such thing"),
        (
            b"gpu1: pdsh@head: 10.0.0.7: ssh killed by signal 9",
            ["gpu1"],
            "pdsh@head: 10.0.0.7: ssh killed by signal 9",
        ),
        (b"\xff\x00: hello", HOSTS, "\ufffd\x00: hello"),
    ],
)
def test_a_line_is_kept_for_those_whose_it_may_be(line: bytes, hosts: Sequence[str], text: str) -> None:
    output = PdshOutput(HOSTS)
    output.take(line)
    assert {name: login.lines for name, login in output.logins.items() if login.lines} == {
        name: [text] for name in hosts
    }
    assert not any(login.has_ended for login in output.logins.values())


LOGGED_IN = b'Authenticated to a.east.lab ([10.0.0.1]:22) using "publickey".\r'


def test_who_has_logged_in() -> None:
    """Of two with one label, either may have."""
    output = PdshOutput(HOSTS)
    for line in (b"a: Welcome!", b"gpu1: said: " + LOGGED_IN, LOGGED_IN, b"a: " + LOGGED_IN, b"a: Timeout, server"):
        output.take(line)
    assert [login.has_logged_in for login in output.logins.values()] == [False, True, True, False]
    assert output.logins["a.east.lab"].lines == ["Timeout, server"]


def test_an_end_is_remembered() -> None:
    output = PdshOutput(HOSTS)
    output.take(b"pdsh@head: gpu1: ssh exited with exit code 127")
    output.take(b"pdsh@head: 10.0.0.7: ssh killed by signal 9")
    assert [login.has_ended for login in output.logins.values()] == [True, False, False, True]


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        ([], "the connection was lost"),
        ([b"gpu1: Timeout, server gpu1 not responding.\r", b"gpu1: \r",
          b"gpu1: Transferred: sent 1, received 2 bytes, in 3 seconds", b"gpu1: Bytes per second: sent 1, received 2"],
         "the connection was lost: Timeout, server gpu1 not responding."),
        ([b"pdsh@head: gpu1: ssh exited with exit code 255"], "the connection was lost"),
        ([b"gpu1: said", b"pdsh@head: gpu1: ssh killed by signal 9"],
         "the connection was lost: its ssh was killed by signal 9"),
    ],
)  # fmt: skip
def test_why_a_connection_was_lost(lines: Sequence[bytes], lost: str) -> None:
    """What came before the login is no reason."""
    output = PdshOutput(HOSTS)
    for line in (b"gpu1: Welcome!", b"gpu1: " + LOGGED_IN, *lines):
        output.take(line)
    assert output.logins["gpu1"].lost == lost


def test_what_was_said_of_a_host_is_kept_in_bounds() -> None:
    output = PdshOutput(HOSTS)
    for number in range(100):
        output.take(b"gpu1: %d " % number + b"x" * 10_000)
    output.take(b"pdsh: of all")
    lines = output.logins["gpu1"].lines
    assert (len(lines), lines[0][:3], lines[-1], max(map(len, lines))) == (50, "51 ", "pdsh: of all", 1000)


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
