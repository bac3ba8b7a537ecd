"""Pairs of hosts: who plays whom and when, the tables, and who is called slow."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.collectives.pairs import Pair, describe_outliers, describe_pairs, list_rounds

GB = 1e9
SLOW = "latency 10.0 us, 1 GB/s"
GOOD = "good pairs: latency 10.0 us, 10 GB/s"


def make_pairs(count: int, slow: dict[tuple[int, int], float], late: dict[tuple[int, int], float]) -> list[Pair]:
    """Every two of `count` hosts: 10 us and 10 GB/s, but some slower (GB/s) and some later (us)."""
    return [
        Pair(*pair, latency_s=late.get(pair, 10.0) * 1e-6, bandwidth=slow.get(pair, 10.0) * GB)
        for pair in combinations(range(count), 2)
    ]


@given(st.integers(1, 65))
def test_a_tournament(count: int) -> None:
    rounds = list_rounds(count)
    for pairs in rounds:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts)), "a host is in two pairs at once"
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert len(rounds) < 2 * count


def test_two_hosts_are_a_line() -> None:
    assert describe_pairs(["a", "b"], [Pair(0, 1, 12.3e-6, 11.25e9)]) == ["a <-> b   latency 12.3 us, 11.2 GB/s"]
    assert describe_outliers(["a", "b"], [Pair(0, 1, 1.0, 1.0)]) == []


def test_of_several_hosts_the_slowest_are_named() -> None:
    names = [f"n{number}" for number in range(17)]
    lines = describe_pairs(names, make_pairs(17, {(3, 9): 1.0}, {(2, 16): 50.0}))
    assert lines[:2] == [
        "136 pairs; those with the lowest bandwidth or the highest latency:",
        "  n3 <-> n9   latency 10.0 us, 1 GB/s",
    ]
    assert "  n2 <-> n16   latency 50.0 us, 10 GB/s" in lines
    assert len(lines) == 7
    assert len(describe_pairs(names[:3], make_pairs(3, {}, {}))) == 1 + 3


@pytest.mark.parametrize(
    ("count", "slow", "late", "lines"),
    [
        (4, {(0, 1): 6.0}, {(0, 1): 29.0}, []),  # a little worse
        (3, {(0, 2): 1.0, (1, 2): 2.0}, {}, [f"n2 is slow with every other host (worst: {SLOW}; {GOOD})"]),
        (4, {}, {(1, 3): 31.0}, [f"n1 <-> n3 is slow (latency 31.0 us, 10 GB/s; {GOOD})"]),
        (
            5,
            {(0, 2): 1.0, (1, 2): 1.0, (2, 3): 1.0, (2, 4): 1.0, (0, 4): 3.0},
            {},
            [
                f"n2 is slow with every other host (worst: {SLOW}; {GOOD})",
                f"n0 <-> n4 is slow (latency 10.0 us, 3 GB/s; {GOOD})",
            ],
        ),
    ],
)
def test_who_is_slow(
    count: int, slow: dict[tuple[int, int], float], late: dict[tuple[int, int], float], lines: list[str]
) -> None:
    names = [f"n{number}" for number in range(count)]
    assert describe_outliers(names, make_pairs(count, slow, late)) == lines
