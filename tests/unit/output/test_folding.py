"""Folded output: all of it where there is room, else its head, and never what is not equal as one."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.output import folding
from launcher.output.folding import FoldedOutput, SameOutput, group, make_folds

unhurried = settings(deadline=None)  # a loaded machine is no bug
MARK = re.compile(rb"launch: (\d+) lines? left out here\n")


def test_equal_output_is_one_group_in_host_order() -> None:
    folds = make_folds(["a", "b", "c", "d"])
    for host, lines in (("d", b"1\n2\n"), ("b", b"other\n"), ("a", b"1\n"), ("a", b"2\n")):
        folds[host].add(lines)
    assert group(folds) == [SameOutput(("a", "d"), b"1\n2\n", 0), SameOutput(("b",), b"other\n", 0)]


def test_hosts_that_differ_in_what_is_left_out_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_BYTES", 0)
    folds = make_folds(["a", "b", "c"])
    for host, middle in (("a", b"x\n"), ("b", b"y\n"), ("c", b"x\n")):
        for lines in (b"begin\n", b"-\n" * 100_000, middle, b"-\n" * 100_000, b"end\n"):
            folds[host].add(lines)
    first, second = group(folds)
    assert (first.hosts, second.hosts) == (("a", "c"), ("b",))
    assert first.text == second.text
    assert first.text.startswith(b"begin\n-\n")
    assert first.left_out == second.left_out == 200_003 - (first.text.count(b"\n") - 1)


@unhurried
@given(st.lists(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"") + b"\n"), min_size=1)))
def test_what_is_kept_are_the_first_lines(blocks: list[list[bytes]]) -> None:
    output = FoldedOutput(20)
    for block in blocks:
        output.add(b"".join(block))
    lines = [line for block in blocks for line in block]
    text = output.text()
    if not output.left_out:
        assert text == b"".join(lines)
        return
    head, left_out, end = MARK.split(text)
    assert len(head) <= 20 and not end
    kept = head.count(b"\n")
    assert b"".join(lines[:kept]) == head
    assert int(left_out) == output.left_out == len(lines) - kept


def test_many_hosts_that_print_without_end_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MOST_BYTES", 2 << 20)
    block = (b"x" * 99 + b"\n") * 100
    folds = make_folds([f"n{number}" for number in range(100)])
    tracemalloc.start()
    try:
        for output in folds.values():
            for _ in range(40):
                output.add(block)  # 40 MB in all
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * folding.MOST_BYTES
