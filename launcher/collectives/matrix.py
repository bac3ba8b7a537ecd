"""Latency and bandwidth between each pair of hosts: the measuring order, the slowest ones, their units. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

SLOWEST = 5
FACTOR = 2.0  # a pair that is worse than good pairs by this factor is reported
NOTABLE_S = 20e-6  # and a latency must be worse by this much; less is noise


@dataclass(frozen=True)
class Pair:
    """The one-way latency and the bandwidth (bytes per second) between two hosts, the smaller number first."""

    first: int
    second: int
    latency_s: float
    bandwidth: float

    @property
    def hosts(self) -> tuple[int, int]:
        """Return the numbers of both hosts."""
        return self.first, self.second

    def __str__(self) -> str:
        return f"latency {time_words(self.latency_s)}, {bandwidth_words(self.bandwidth)}"


def list_rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of a round-robin tournament: no host is in two pairs of a round, and each pair meets once.

    This is the circle method: the first host stays, the others move by one. With an odd number, one host pauses.
    """
    seats = list(range(count)) + [-1] * (count % 2)
    rounds = []
    for _ in range(len(seats) - 1):
        tables = [sorted((seats[place], seats[-1 - place])) for place in range(len(seats) // 2)]
        rounds.append([(first, second) for first, second in tables if first >= 0])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def describe_pairs(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return the one pair of two hosts, or the slowest ones of several; `--plot` shows them all."""
    if len(pairs) < 2:
        return [f"{names[0]} <-> {names[1]}   {pair}" for pair in pairs]
    slowest = sorted(pairs, key=lambda pair: pair.bandwidth)[:SLOWEST]
    latest = sorted(pairs, key=lambda pair: -pair.latency_s)[:SLOWEST]
    return [
        f"{len(pairs)} pairs; those with the lowest bandwidth:",
        *_lines(names, slowest),
        "those with the highest latency:",
        *_lines(names, latest),
    ]


def describe_outliers(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return a line for each host that is slow with every other host, then for each other slow pair.

    The reference is the better quartile: one bad host of three is in two of the three pairs, and so in their median.
    """
    if len(pairs) < 3:
        return []
    bandwidth = sorted(pair.bandwidth for pair in pairs)[-1 - len(pairs) // 4]
    latency_s = sorted(pair.latency_s for pair in pairs)[len(pairs) // 4]

    def is_slow(pair: Pair) -> bool:
        is_late = pair.latency_s > max(FACTOR * latency_s, latency_s + NOTABLE_S)
        return is_late or pair.bandwidth * FACTOR < bandwidth

    slow = {pair.hosts: pair for pair in pairs if is_slow(pair)}
    bad = [host for host in range(len(names)) if all(is_slow(pair) for pair in pairs if host in pair.hosts)]
    usual = f"good pairs: {time_words(latency_s)}, {bandwidth_words(bandwidth)}"
    lines = []
    for host in bad:
        worst = min((pair for pair in pairs if host in pair.hosts), key=lambda pair: pair.bandwidth)
        lines.append(f"{names[host]} is slow with every other host (worst: {worst}; {usual})")
    for first, second in combinations(range(len(names)), 2):
        if (first, second) in slow and not {first, second} & set(bad):
            lines.append(f"{names[first]} <-> {names[second]} is slow ({slow[first, second]}; {usual})")
    return lines


def _lines(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    return [f"  {names[pair.first]} <-> {names[pair.second]}   {pair}" for pair in pairs]


# ---- numbers with their units ----------------------------------------------------------------------------------------


def size_words(size_bytes: int) -> str:
    """Return `4 KiB`, `64 MiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def time_words(seconds: float) -> str:
    """Return `12.3 us`, `4.56 ms`, `1.23 s`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def bandwidth_words(bytes_per_s: float) -> str:
    """Return `1.23 GB/s`, `45.6 MB/s`, in steps of 1000 as in nccl-tests."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"
