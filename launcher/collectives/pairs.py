"""Measure latency and bandwidth between each pair of hosts, over the network and backend that training uses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.collectives.bandwidth import MIB, synchronize
from launcher.collectives.watch import Watch
from launcher.distributed import World
from launcher.exchange import gather

TURNS = 50  # round trips of a few bytes
LARGE_TURNS = 5
LARGE_BYTES = {"cpu": 2 * MIB, "cuda": 32 * MIB}
SLOWEST = 5
FACTOR = 2.0  # a pair that is worse than good pairs by this factor is reported
NOTABLE_S = 20e-6  # and a latency must be worse by this much; less is noise


@dataclass(frozen=True)
class Hosts:
    """The hosts of a world in rank order: their names, and the rank that measures for each."""

    names: tuple[str, ...]
    leaders: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """The one-way latency and the bandwidth (bytes per second) between two hosts, the smaller number first."""

    first: int
    second: int
    latency_s: float
    bandwidth: float

    def __str__(self) -> str:
        return _describe(self.latency_s, self.bandwidth)


def find_hosts(world: World, names: Sequence[str] = ()) -> Hosts:
    """Ask each rank where it runs; use `names` if there is one for each host, else each host's own name."""
    places: list[tuple[int, str]] = gather((world.local_rank, world.host.partition(".")[0]))
    leaders = tuple(rank for rank, (local_rank, _) in enumerate(places) if local_rank == 0)
    own_names = tuple(places[rank][1] for rank in leaders)
    return Hosts(tuple(names) if len(names) == len(leaders) else own_names, leaders)


def list_rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds in which no host is in two pairs, and after which each pair has met once.

    In a round, the number of each host and that of its peer differ in the same bits.
    """
    rounds = range(1, 1 << (count - 1).bit_length())
    return [[(host, host ^ bits) for host in range(count) if host < host ^ bits < count] for bits in rounds]


def measure_pairs(world: World, watch: Watch, hosts: Hosts) -> list[Pair]:
    """Measure each pair of hosts between their local ranks 0, disjoint pairs at once; return the same on all ranks."""
    own: list[Pair] = []
    for number, pairs in enumerate(list_rounds(len(hosts.names)), 1):
        playing = [pair for pair in pairs if world.rank in (hosts.leaders[pair[0]], hosts.leaders[pair[1]])]
        met = [f"measuring {hosts.names[first]} <-> {hosts.names[second]}" for first, second in playing]
        with watch.step("".join(met) or f"measuring round {number} of the host pairs"):
            own += [measure_pair(world, hosts, first, second) for first, second in playing]
            dist.barrier()  # otherwise the next round would disturb this one
    with watch.step("gathering the measurements"):
        found: list[list[Pair]] = gather([pair for pair in own if hosts.leaders[pair.first] == world.rank])
    return sorted(chain.from_iterable(found), key=lambda pair: (pair.first, pair.second))


def measure_pair(world: World, hosts: Hosts, first: int, second: int) -> Pair:
    """Measure round trips of a few bytes, then of a few MiB."""
    is_first = world.rank == hosts.leaders[first]
    peer = hosts.leaders[second if is_first else first]
    small = torch.zeros(1, device=world.device)
    large = torch.zeros(LARGE_BYTES[world.device.type] // small.element_size(), device=world.device)
    play(world, small, peer, 2, begins=is_first)  # connects
    latency_s = play(world, small, peer, TURNS, begins=is_first) / 2
    play(world, large, peer, 1, begins=is_first)
    large_s = play(world, large, peer, LARGE_TURNS, begins=is_first) / 2
    return Pair(first, second, latency_s, large.numel() * large.element_size() / large_s)


def play(world: World, ball: Tensor, peer: int, turns: int, *, begins: bool) -> float:
    """Return the median seconds of a round trip; a median, because a busy host delays some round trips a lot."""
    seconds = []
    for _ in range(turns):
        began_at = time.perf_counter()
        if begins:
            dist.send(ball, peer)
            dist.recv(ball, peer)
        else:
            dist.recv(ball, peer)
            dist.send(ball, peer)
        synchronize(world)
        seconds.append(time.perf_counter() - began_at)
    return median(seconds)


def describe_pairs(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return the one pair of two hosts, or the slowest ones of several; results.json has them all."""
    narrowest = sorted(pairs, key=lambda pair: pair.bandwidth)[:SLOWEST]
    latest = sorted(pairs, key=lambda pair: -pair.latency_s)[:SLOWEST]
    lines = [f"{_join(names, pair)}   {pair}" for pair in dict.fromkeys([*narrowest, *latest])]
    if len(pairs) < 2:
        return lines
    heading = f"{len(pairs)} pairs; those with the lowest bandwidth or the highest latency:"
    return [heading, *(f"  {line}" for line in lines)]


def describe_outliers(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return a line for each host that is slow with every other host, then for each other slow pair.

    The reference is the better quartile: one bad host of three is in two of the three pairs, and so in their median.
    """
    if len(pairs) < 3:
        return []
    bandwidth = sorted(pair.bandwidth for pair in pairs)[-1 - len(pairs) // 4]
    latency_s = sorted(pair.latency_s for pair in pairs)[len(pairs) // 4]
    latest_s = max(FACTOR * latency_s, latency_s + NOTABLE_S)
    slow = [pair for pair in pairs if pair.latency_s > latest_s or pair.bandwidth * FACTOR < bandwidth]
    times = Counter(host for pair in slow for host in (pair.first, pair.second))
    bad = [host for host in range(len(names)) if times[host] == len(names) - 1]
    usual = f"good pairs: {_describe(latency_s, bandwidth)}"
    lines = []
    for host in bad:
        worst = min((pair for pair in slow if host in (pair.first, pair.second)), key=lambda pair: pair.bandwidth)
        lines.append(f"{names[host]} is slow with every other host (worst: {worst}; {usual})")
    others = [pair for pair in slow if pair.first not in bad and pair.second not in bad]
    return lines + [f"{_join(names, pair)} is slow ({pair}; {usual})" for pair in others]


def _join(names: Sequence[str], pair: Pair) -> str:
    return f"{names[pair.first]} <-> {names[pair.second]}"


def _describe(latency_s: float, bandwidth: float) -> str:
    return f"latency {latency_s * 1e6:.1f} us, {bandwidth / 1e9:.3g} GB/s"
