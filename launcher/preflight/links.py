"""Find hosts and pairs of hosts whose round trip or packet loss is far above that of the others.

Every node has measured its connections to node 0 and to the next node, so most have two partners or more. A host has
a finding if all its links are slow, or if several lose packets; for a single bad link, both ends are named.
A wrong warning is worse than a missing one, so the limits are above what a switch or a busy machine sometimes causes.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Apart:
    """The outliers: single hosts, and pairs of which neither host is an outlier itself."""

    hosts: tuple[str, ...]
    pairs: tuple[_Pair, ...]


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield which hosts and pairs of hosts are outliers, with the command that measures them."""
    links = join_links(nodes)
    if links:
        fix = _measure(nodes)
        yield from _check_round_trips({pair: link.round_trip_s for pair, link in links.items()}, fix)
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


# ---- round trips ----------------------------------------------------------------------------------------------------


def _check_round_trips(times: Mapping[_Pair, float], fix: str) -> Iterator[Finding]:
    best = _best_by_host(times)
    usual = median_low(best.values())
    if usual > _LONG_S:  # also of two hosts that are far from each other: neither is to blame
        yield Finding(tuple(best), f"a round trip between them takes {_milliseconds(usual)}", fix, WARNING)
        return
    apart = _find_slow(times, best, usual)
    for name in apart.hosts:
        text = f"a round trip to the other hosts takes {_milliseconds(best[name])}, theirs take {_milliseconds(usual)}"
        yield Finding((name,), text, fix, WARNING)
    others = f", others take {_milliseconds(usual)}"
    slow = {pair: f"a round trip {_between(pair)} takes {_milliseconds(times[pair])}{others}" for pair in apart.pairs}
    yield from _name_pairs(slow, fix)


def _best_by_host(times: Mapping[_Pair, float]) -> dict[str, float]:
    best: dict[str, float] = {}
    for pair, seconds in times.items():
        for name in pair:
            best[name] = min(seconds, best.get(name, seconds))
    return best


def _find_slow(times: Mapping[_Pair, float], best: Mapping[str, float], usual: float) -> _Apart:
    """Find slow hosts and pairs; a host is slow if it is slow to all of its partners, and it has at least two."""

    def is_slow(seconds: float) -> bool:
        return seconds > _TIMES * usual and seconds > usual + _LONGER_S

    partners = Counter(name for pair in times for name in pair)
    hosts = tuple(name for name, seconds in best.items() if is_slow(seconds) and partners[name] > 1)
    pairs = (pair for pair, seconds in times.items() if is_slow(seconds))
    return _Apart(hosts, tuple(pair for pair in pairs if not set(pair) & set(hosts)))


def _milliseconds(seconds: float) -> str:
    """Return `201 ms` or `0.3 ms`."""
    number = seconds * 1000
    return f"{number:.0f} ms" if number >= 9.5 else f"{max(0.1, number):.1f} ms"


# ---- losses ---------------------------------------------------------------------------------------------------------


def _check_losses(links: Mapping[_Pair, LinkQuality], fix: str) -> Iterator[Finding]:
    lossy = [pair for pair, link in links.items() if link.lost >= _LOST and link.lost >= _LOST_SHARE * link.sent]
    apart = _find_lossy(lossy, list(links))
    if apart is None:  # a switch, perhaps
        names = tuple(dict.fromkeys(name for pair in lossy for name in pair))
        text = f"{_loss(links[pair] for pair in lossy)} between them were lost"
        yield Finding(names, text, fix, WARNING)
        return
    for name in apart.hosts:
        text = f"{_loss(links[pair] for pair in lossy if name in pair)} to and from other hosts were lost"
        yield Finding((name,), text, fix, WARNING)
    lost = {pair: f"{_loss([links[pair]])} {_between(pair)} were lost" for pair in apart.pairs}
    yield from _name_pairs(lost, fix)


def _find_lossy(lossy: list[_Pair], pairs: list[_Pair]) -> _Apart | None:
    """Blame the host with the most lossy links, then the one with most of the rest, as long as one has two.

    Return None if most of the links that remain lose packets as well.
    """
    hosts: list[str] = []
    while lossy:
        name, times = Counter(name for pair in lossy for name in pair).most_common(1)[0]
        if times < 2:
            break
        hosts.append(name)
        lossy, pairs = ([pair for pair in some if name not in pair] for some in (lossy, pairs))
        if len(lossy) * 2 > len(pairs):
            return None
    return _Apart(tuple(hosts), tuple(lossy))


def _loss(links: Iterable[LinkQuality]) -> str:
    lost, sent = map(sum, zip(*((link.lost, link.sent) for link in links), strict=True))
    return f"{lost} of {count(sent, 'packet')}"


# ---- words ----------------------------------------------------------------------------------------------------------


def _between(pair: _Pair) -> str:
    """Name both hosts: equal findings are merged, and without names would seem to be about other pairs too."""
    return f"between {pair[0]} and {pair[1]}"


def _name_pairs(pairs: Mapping[_Pair, str], fix: str) -> Iterator[Finding]:
    """Yield a finding for each pair, or a single one if there are many."""
    if len(pairs) > _MOST_NAMED:
        names = tuple(dict.fromkeys(name for pair in pairs for name in pair))
        example = next(iter(pairs.values()))
        text = f"{len(pairs)} of their links are worse than the rest (for example, {example})"
        yield Finding(names, text, fix, WARNING)
        return
    for pair, text in pairs.items():
        yield Finding(pair, text, fix, WARNING)


def _measure(nodes: Sequence[CheckedHost]) -> str:
    """Return the command that measures each pair."""
    return f"run `test-distributed 1 --hosts {shlex.quote(fold_names([node.name for node in nodes]))}`"
