"""Whose round trip or loss stands apart, and who is never blamed; each finding as a whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.example_facts import JOB, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import LinkQuality, Probe, Probes
from launcher.preflight.findings import CheckedHost, fold
from launcher.preflight.links import check, join_links

USUAL = LinkQuality(0.0003, 34, 0)


def nodes(number, links):
    """Return so many nodes that have tried node 0 and the next one; `links` says what a pair has, others are USUAL."""
    every = []
    for place in range(number):
        following = (place + 1) % number
        targets = [0] if following == place else [0, following]
        probes = [
            Probe(
                f"gpu{target + 1}", f"10.0.0.{target + 1}", 29500, target == 0,
                link=links.get(frozenset([place + 1, target + 1]), USUAL),
            )
            for target in targets
        ]  # fmt: skip
        every.append(CheckedHost(JOB, Host(f"gpu{place + 1}"), facts(probes=Probes(tuple(probes)))))
    return every


def every_link(number, sick, link):
    """Return what pairs have if these hosts have `link` to all others."""
    return {frozenset([one, other]): link for one in sick for other in range(1, number + 1) if other != one}


def found(number, links):
    return told(fold(check(nodes(number, links))))


def fix(number):
    return f"fix: run `test-distributed 1 --hosts 'gpu[1-{number}]'`"


SLOW = LinkQuality(0.2013, 34, 0)
LOSSY = LinkQuality(0.0004, 60, 12)
FAR = LinkQuality(0.08, 34, 0)


@pytest.mark.parametrize(
    ("number", "links", "findings"),
    [
        (1, {}, []),
        (2, {}, []),
        (8, {}, []),
        # one host
        (3, every_link(3, [3], SLOW), ["gpu3: a round trip to the other hosts takes 201 ms, theirs take 0.3 ms"]),
        (3, every_link(3, [1], SLOW), ["gpu1: a round trip to the other hosts takes 201 ms, theirs take 0.3 ms"]),
        (8, every_link(8, [1], SLOW), ["gpu1: a round trip to the other hosts takes 201 ms, theirs take 0.3 ms"]),
        (
            8,
            every_link(8, [2, 5], SLOW),
            ["gpu[2,5]: a round trip to the other hosts takes 201 ms, theirs take 0.3 ms"],
        ),
        (3, every_link(3, [2], LOSSY), ["gpu2: 36 of 180 packets to and from other hosts were lost"]),
        (8, every_link(8, [1], LOSSY), ["gpu1: 108 of 540 packets to and from other hosts were lost"]),
        (
            3,
            every_link(3, [3], LinkQuality(0.2, 60, 12)),
            [
                "gpu3: a round trip to the other hosts takes 200 ms, theirs take 0.3 ms",
                "gpu3: 36 of 180 packets to and from other hosts were lost",
            ],
        ),
        # two hosts: none is right
        (2, every_link(2, [2], SLOW), ["gpu[1-2]: a round trip between them takes 201 ms"]),
        (2, every_link(2, [2], LOSSY), ["gpu[1-2]: 36 of 180 packets between gpu1 and gpu2 were lost"]),
        # a pair
        (4, {frozenset([2, 3]): SLOW}, ["gpu[2-3]: a round trip between gpu2 and gpu3 "
            "takes 201 ms, others take 0.3 ms"]),
        (4, {frozenset([2, 3]): LOSSY}, ["gpu[2-3]: 12 of 60 packets between gpu2 and gpu3 were lost"]),
        (3, {frozenset([1, 2]): LOSSY}, ["gpu[1-2]: 24 of 120 packets between gpu1 and gpu2 were lost"]),
        # two sites: gpu1, gpu2 and gpu3, gpu4
        (
            4,
            {frozenset(pair): FAR for pair in ((1, 3), (1, 4), (2, 3))},
            [
                "gpu[2-3]: a round trip between gpu2 and gpu3 takes 80 ms, others take 0.3 ms",
                "gpu[1,3]: a round trip between gpu1 and gpu3 takes 80 ms, others take 0.3 ms",
                "gpu[1,4]: a round trip between gpu1 and gpu4 takes 80 ms, others take 0.3 ms",
            ],
        ),
        (
            8,
            {frozenset([one, other]): FAR for one in (1, 2, 3, 4) for other in (5, 6, 7, 8)},
            [
                "gpu[1,4-8]: 5 of their links are bad; for example, a round trip between gpu4 and gpu5 "
                "takes 80 ms, others take 0.3 ms"
            ],
        ),
        # all of them
        (5, every_link(5, range(1, 6), FAR), ["gpu[1-5]: a round trip between them takes 80 ms"]),
        (5, every_link(5, range(1, 6), LOSSY),
         ["gpu[1-5]: 7 of their links are bad; for example, 24 of 120 packets between gpu1 and gpu2 were lost"]),
        # what is no finding: a queue that overflows for once, a wireless card, a lost packet of very many
        (3, every_link(3, [3], LinkQuality(0.0003, 60, 1)), []),
        (3, every_link(3, [3], LinkQuality(0.0095, 34, 0)), []),
        (3, every_link(3, [1, 2, 3], LinkQuality(0.019, 34, 0)), []),
        (40, every_link(40, [3], LinkQuality(0.0003, 300, 3)), []),
    ],
)  # fmt: skip
def test_who_stands_apart(number, links, findings):
    assert found(number, links) == [f"warning: {finding}; {fix(number)}" for finding in findings]


def test_what_measures_them_can_be_pasted():
    (finding,) = check(nodes(3, every_link(3, [3], SLOW)))
    assert finding.fix == "run `test-distributed 1 --hosts 'gpu[1-3]'`"


def test_a_pair_has_the_best_time_and_all_packets_of_both_ways():
    every = nodes(2, {})
    other = Probes((Probe("gpu2", "10.0.0.2", 1, False, link=LinkQuality(0.0001, 50, 2)), Probe("gone", "", 1, False)))
    every[0] = CheckedHost(JOB, every[0].host, facts(probes=other))
    assert join_links(every) == {("gpu1", "gpu2"): LinkQuality(0.0001, 118, 2)}
    assert join_links([CheckedHost(JOB, Host("gpu1"), facts())]) == {}


TIMES = st.floats(1e-6, 0.01)
MANY = st.integers(2, 9)


@given(MANY, st.data())
def test_what_a_healthy_network_shows_is_no_finding(number, data):
    """Whatever times under 10 ms there are, and one or two packets lost on each link."""
    pairs = [frozenset([one, other]) for one in range(1, number + 1) for other in range(one + 1, number + 1)]
    links = {pair: LinkQuality(data.draw(TIMES), 60, data.draw(st.integers(0, 1))) for pair in pairs}
    assert found(number, links) == []


@given(st.integers(3, 9), st.data())
def test_of_three_and_more_the_one_that_is_sick_is_named_and_nobody_else(number, data):
    sick = data.draw(st.integers(1, number))
    lost = data.draw(st.integers(6, 20))
    links = every_link(number, [sick], LinkQuality(data.draw(st.floats(0.06, 3)), 60, lost))
    assert [(finding.hosts, finding.severity.value) for finding in check(nodes(number, links))] == [
        ((f"gpu{sick}",), "warning")
    ] * 2
