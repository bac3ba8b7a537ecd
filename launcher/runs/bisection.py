"""Find which hosts make a run fail: test each alone first, then find the smallest set that fails together. Pure.

The search requests runs by yielding a batch of groups, and is sent whether each passed.
The groups of a batch have no host in common, so their runs can go side by side.
The second part is Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002), with hosts as input.
"""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from launcher.hosts.ranges import fold_names
from launcher.wording import listed

Group = tuple[str, ...]
Search = Generator[list[Group], list[bool], "Verdict"]


@dataclass(frozen=True, slots=True)
class Together:
    """Hosts that fail together, while every smaller set that was tried passes."""

    hosts: Group  # hosts that fail together, and not in smaller sets
    culprits: Group = ()  # the hosts to blame: without them, all other hosts pass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search found; `together` may hold several sets, without a host in common."""

    alone: Group = ()  # the hosts that fail alone
    together: tuple[Together, ...] = ()
    is_repeatable: bool = True  # whether the failure happened again
    is_complete: bool = True  # whether all was tested; a search between two attempts ends after 10 minutes

    def lines(self) -> list[str]:
        """Return the verdict, one line for each finding."""
        lines = [f"{fold_names(self.alone)} {'fail' if len(self.alone) > 1 else 'fails'} alone"] if self.alone else []
        for found in self.together:
            names = listed(found.hosts) if len(found.hosts) == 2 else fold_names(found.hosts)
            text = f"{names} fail together, but each passes alone"
            if len(found.culprits) == 1:
                text += f"; without {found.culprits[0]}, the others pass"
            lines.append(text)
        if not self.is_complete:
            lines.append("the time for the search is over")
        elif not self.is_repeatable:
            lines.append("all passed this time: the failure is intermittent")
        elif not lines:
            lines.append("nothing fails")
        return lines


def search_culprits(hosts: Sequence[str]) -> Search:
    """Find which of these hosts, whose run together failed, are to blame; request no run twice."""
    search = _search(hosts)
    known: dict[Group, bool] = {}
    batch = next(search)
    while True:
        fresh = [group for group in batch if group not in known]
        if fresh:
            known |= zip(fresh, (yield fresh), strict=True)
        try:
            batch = search.send([known[group] for group in batch])
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def _search(hosts: Sequence[str]) -> Search:
    singles: list[Group] = [(host,) for host in hosts]
    passed = yield singles
    alone = tuple(host for host, is_well in zip(hosts, passed, strict=True) if not is_well)
    rest = tuple(host for host in hosts if host not in alone)
    together: list[Together] = []
    is_known_to_fail = not alone
    while len(rest) > 1:
        if not is_known_to_fail and (yield [rest]) == [True]:
            break
        found = yield from minimize(rest)
        if found == rest and (yield [rest]) == [True]:
            return Verdict(alone, tuple(together), is_repeatable=False)
        culprits = yield from _find_culprits(found, rest)
        together.append(Together(found, culprits))
        rest = tuple(host for host in rest if host not in found)
        is_known_to_fail = False
    return Verdict(alone, tuple(together))


def minimize(hosts: Group) -> Generator[list[Group], list[bool], Group]:
    """Return a subset that fails, but passes without any one of its hosts; single hosts are known to pass."""
    parts = 2
    while len(hosts) > 2:
        groups = _split(hosts, parts)
        failing = None
        larger = [group for group in groups if len(group) > 1]
        if larger:
            passed = yield larger
            failing = next((group for group, is_well in zip(larger, passed, strict=True) if not is_well), None)
        if failing is not None:
            hosts, parts = failing, 2
            continue
        # With two halves, the complement of one is the other, which was already tested.
        smaller = (yield from _find_failing_complement(hosts, groups)) if parts > 2 else None
        if smaller is not None:
            hosts, parts = smaller, max(parts - 1, 2)
        elif parts >= len(hosts):
            break
        else:
            parts = min(2 * parts, len(hosts))
    return hosts


def _find_failing_complement(hosts: Group, groups: Sequence[Group]) -> Generator[list[Group], list[bool], Group | None]:
    for group in groups:
        complement = tuple(host for host in hosts if host not in group)
        if (yield [complement]) == [False]:
            return complement
    return None


def _find_culprits(found: Group, hosts: Group) -> Generator[list[Group], list[bool], Group]:
    """Return those of `found` without which all other hosts pass: both of a bad pair, or the one bad host."""
    culprits: list[str] = []
    for host in found if len(found) < len(hosts) else ():
        passed = yield [tuple(other for other in hosts if other != host)]
        culprits += [host] * passed[0]
    return tuple(culprits)


def _split(hosts: Group, parts: int) -> list[Group]:
    ends = [len(hosts) * part // parts for part in range(parts + 1)]
    return [hosts[begin:end] for begin, end in pairwise(ends)]
