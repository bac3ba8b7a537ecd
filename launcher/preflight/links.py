"""Find hosts and pairs of hosts whose round trip or packet loss is far above that of the others.

Every node has measured its connections to node 0 and to the next node, so most have two partners or more. A host has
a finding if all its links are bad; for any other bad link, both ends are named.
A wrong warning is worse than a missing one, so the limits are above what a switch or a busy machine sometimes causes.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median_low

from launcher.hosts.ranges import fold_names
from launcher.job.facts import LinkQuality
from launcher.preflight.findings import WARNING, CheckedHost, Finding
from launcher.wording import count

_TIMES = 5  # times the usual round trip, and
_LONGER_S = 0.010  # longer by this, which neither a switch nor a busy machine causes
_LONG_S = 0.020  # no round trip within a site takes that long, even if all are alike
_MOST_NAMED = 4  # pairs that are named one by one
_LOST = 3  # packets of one link; a queue that overflows once loses one or two
_LOST_SHARE = 0.04

_Pair = tuple[str, str]  # names, in the order of hosts


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield which hosts and pairs of hosts are outliers, with the command that measures them."""
    links = join_links(nodes)
    if links:
        fix = _measure(nodes)
        yield from _check_round_trips(links, fix)
        yield from _check_losses(links, fix)


def join_links(nodes: Sequence[CheckedHost]) -> dict[_Pair, LinkQuality]:
    """Return one link for each pair of hosts that was measured: its quickest round trip, and all of its packets."""
    places = {node.name: place for place, node in enumerate(nodes)}
    joined: dict[_Pair, LinkQuality] = {}
    for node in nodes:
        for probe in node.fact.probes.tried if node.fact.probes is not None else ():
            if probe.link is None or probe.host == node.name or probe.host not in places:
                continue
            first, second = sorted((node.name, probe.host), key=places.__getitem__)
            known = joined.get((first, second), LinkQuality(probe.link.round_trip_s, 0, 0))
            joined[first, second] = LinkQuality(
                min(known.round_trip_s, probe.link.round_trip_s),
                known.sent + probe.link.sent,
                known.lost + probe.link.lost,
            )
    return joined


def _check_round_trips(links: Mapping[_Pair, LinkQuality], fix: str) -> Iterator[Finding]:
    best: dict[str, float] = {}  # of each host
    for pair, link in links.items():
        for name in pair:
            best[name] = min(link.round_trip_s, best.get(name, link.round_trip_s))
    usual = median_low(best.values())
    if usual > _LONG_S:  # also of two hosts that are far from each other: neither is to blame
        yield Finding(tuple(best), f"a round trip between them takes {_milliseconds(usual)}", fix, WARNING)
        return
    slow = {
        (one, other): f"a round trip between {one} and {other} takes {_milliseconds(link.round_trip_s)}, "
        f"others take {_milliseconds(usual)}"
        for (one, other), link in links.items()
        if link.round_trip_s > _TIMES * usual and link.round_trip_s > usual + _LONGER_S
    }

    def describe(name: str) -> str:
        return f"a round trip to the other hosts takes {_milliseconds(best[name])}, theirs take {_milliseconds(usual)}"

    yield from _name(slow, links, describe, fix)


def _milliseconds(seconds: float) -> str:
    """Return `201 ms` or `0.3 ms`."""
    number = seconds * 1000
    return f"{number:.0f} ms" if number >= 9.5 else f"{max(0.1, number):.1f} ms"


def _check_losses(links: Mapping[_Pair, LinkQuality], fix: str) -> Iterator[Finding]:
    lossy = {
        (one, other): f"{_loss([link])} between {one} and {other} were lost"
        for (one, other), link in links.items()
        if link.lost >= _LOST and link.lost >= _LOST_SHARE * link.sent
    }

    def describe(name: str) -> str:
        return f"{_loss(links[pair] for pair in lossy if name in pair)} to and from other hosts were lost"

    yield from _name(lossy, links, describe, fix)


def _loss(links: Iterable[LinkQuality]) -> str:
    lost, sent = map(sum, zip(*((link.lost, link.sent) for link in links), strict=True))
    return f"{lost} of {count(sent, 'packet')}"


def _name(
    bad: Mapping[_Pair, str], pairs: Collection[_Pair], describe: Callable[[str], str], fix: str
) -> Iterator[Finding]:
    """Yield a finding for each host all of whose links are bad, and for each other bad pair; one if these are many.

    bad: what is said of each pair. Equal findings are merged, so it names both hosts.
    """
    own, every = (Counter(name for pair in some for name in pair) for some in (bad, pairs))
    hosts = [name for name, times in own.items() if times == every[name] > 1]
    if 2 * len(hosts) > len(every):  # then it is a switch, perhaps
        hosts = []
    for name in hosts:
        yield Finding((name,), describe(name), fix, WARNING)
    rest = {pair: text for pair, text in bad.items() if not set(pair) & set(hosts)}
    if len(rest) > _MOST_NAMED:
        names = tuple(dict.fromkeys(name for pair in rest for name in pair))
        text = f"{len(rest)} of their links are bad; for example, {next(iter(rest.values()))}"
        yield Finding(names, text, fix, WARNING)
        return
    for pair, text in rest.items():
        yield Finding(pair, text, fix, WARNING)


def _measure(nodes: Sequence[CheckedHost]) -> str:
    """Return the command that measures each pair."""
    return f"run `test-distributed 1 --hosts {shlex.quote(fold_names([node.name for node in nodes]))}`"
