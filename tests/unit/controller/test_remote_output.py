"""What comes from a launcher on another host: its output up to its last line."""

from __future__ import annotations

import pytest

from launcher.controller.remote_launcher import LineCut

MARK = b"~12ab "


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("data", "shown", "word"),
    [
        (b"one\n~12ab 0\n", b"one\n", "0"),
        (b"half~12ab left\nrest", b"half", "left"),
        (b"~~12ab 7\n", b"~", "7"),
        (b"~12a b\n", b"~12a b\n", ""),
        (b"~12ab 13", b"", ""),
        (b"one~12ab \n two~12ab \n~12ab \n~12ab 0\n", b"one two", "0"),  # with heartbeats
    ],
)
def test_output_comes_up_to_the_last_line(data: bytes, shown: bytes, word: str, size: int) -> None:
    cut = LineCut(MARK)
    found = b""
    for start in range(0, len(data), size):
        if not cut.word:
            found += cut.take(data[start : start + size])
    assert (found, cut.word) == (shown, word)
