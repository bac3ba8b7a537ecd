"""What is tried over which way in: nothing is left out but what GAPS names."""

from __future__ import annotations

from pathlib import Path

from ways import GAPS, WAYS, Promise

TESTS = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))


def test_every_promise_is_tried() -> None:
    tried = {promise for promise in Promise if f"Promise.{promise.name}" in TESTS}
    assert tried == set(Promise) - {Promise.BROKEN}, "this one is tried by over_cuts"
    assert "@over_cuts()" in TESTS


def test_a_way_without_cuts_says_why() -> None:
    assert {way.name for way in WAYS if not way.cuts} == {name for name, gaps in GAPS.items() if Promise.BROKEN in gaps}


def test_gaps_are_of_ways_that_there_are() -> None:
    assert set(GAPS) <= {way.name for way in WAYS}


def test_a_way_that_meets_absent_hosts_says_how() -> None:
    assert {way.name for way in WAYS if not way.never_there} == {
        name for name, gaps in GAPS.items() if Promise.ABSENT in gaps
    }
