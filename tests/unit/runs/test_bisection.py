"""The search for the hosts that make a run fail, on made-up faults."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.bisection import Search, Together, Verdict, minimize, search_culprits

EIGHT = tuple(f"n{number}" for number in range(1, 9))


class Hosts:
    """Hosts of which some groups fail: every group that holds one of `faults`."""

    def __init__(self, *faults: str) -> None:
        self.faults = [set(fault.split()) for fault in faults]
        self.batches: list[list[tuple[str, ...]]] = []

    def passes(self, group: tuple[str, ...]) -> bool:
        return not any(fault <= set(group) for fault in self.faults)

    def run(self, search: Search) -> Verdict:
        """Answer the search until it ends."""
        try:
            batch = next(search)
            while True:
                self.batches.append(batch)
                batch = search.send([self.passes(group) for group in batch])
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(
    ("faults", "verdict", "lines"),
    [
        pytest.param(
            tuple(f"n6 {other}" for other in EIGHT if other != "n6"),
            Verdict((), (Together(("n5", "n6"), ("n6",)),)),
            ["n5 and n6 fail together, but each passes alone; without n6, the others pass"],
            id="one with everybody",
        ),
        pytest.param(
            ("n2", "n1 n6", "n3 n4"),
            Verdict(("n2",), (Together(("n3", "n4")), Together(("n1", "n6"), ("n1", "n6")))),
            [
                "n2 fails alone",
                "n3 and n4 fail together, but each passes alone",
                "n1 and n6 fail together, but each passes alone",
            ],
            id="one alone and two pairs",
        ),
        pytest.param(
            (" ".join(EIGHT),),
            Verdict((), (Together(EIGHT),)),
            ["n[1-8] fail together, but each passes alone"],
            id="all",
        ),
        pytest.param(
            (),
            Verdict(is_repeatable=False),
            ["all passed this time: the failure is intermittent"],
            id="not every time",
        ),
    ],
)
def test_the_verdict(faults: tuple[str, ...], verdict: Verdict, lines: list[str]) -> None:
    found = Hosts(*faults).run(search_culprits(EIGHT))
    assert found == verdict
    assert found.lines() == lines


@st.composite
def any_hosts(draw: st.DrawFn) -> tuple[tuple[str, ...], Hosts]:
    hosts = tuple(f"n{number}" for number in range(draw(st.integers(2, 24))))
    faults = draw(st.lists(st.sets(st.sampled_from(hosts), min_size=1, max_size=3), min_size=1, max_size=4))
    return hosts, Hosts(*(" ".join(fault) for fault in faults))


@given(any_hosts())
def test_any_faults(drawn: tuple[tuple[str, ...], Hosts]) -> None:
    hosts, hosts_tried = drawn
    verdict = hosts_tried.run(search_culprits(hosts))
    assert verdict.alone == tuple(host for host in hosts if not hosts_tried.passes((host,)))
    for found in verdict.together:
        assert not hosts_tried.passes(found.hosts)
        assert all(hosts_tried.passes(smaller) for smaller in combinations(found.hosts, len(found.hosts) - 1))
    blamed = {*verdict.alone, *(host for found in verdict.together for host in found.hosts)}
    assert hosts_tried.passes(tuple(host for host in hosts if host not in blamed)), "a fault was not found"
    for batch in hosts_tried.batches:
        members = [host for group in batch for host in group]
        assert len(members) == len(set(members)), "two runs at once on a host"


@given(st.integers(3, 64), st.data())
def test_a_pair_is_found_in_few_runs(count: int, data: st.DataObject) -> None:
    hosts = tuple(f"n{number}" for number in range(count))
    pair = data.draw(st.lists(st.sampled_from(hosts), min_size=2, max_size=2, unique=True))
    hosts_tried = Hosts(" ".join(pair))
    assert set(hosts_tried.run(minimize(hosts))) == set(pair)
    assert len(hosts_tried.batches) <= 6 * (count + 1).bit_length()  # 37 of 63 hosts, the most of all
