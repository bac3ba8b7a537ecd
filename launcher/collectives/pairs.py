"""Measure latency and bandwidth between each pair of hosts, over the network and backend that training uses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.collectives.bandwidth import MIB, synchronize
from launcher.collectives.matrix import Pair, list_rounds
from launcher.collectives.watch import Watch
from launcher.distributed import World
from launcher.exchange import gather

TURNS = 50  # round trips of a few bytes
LARGE_TURNS = 5
LARGE_BYTES = {"cpu": 2 * MIB, "cuda": 32 * MIB}


@dataclass(frozen=True)
class Hosts:
    """The hosts of a world in rank order: their names, and the rank that measures for each."""

    names: tuple[str, ...]
    leaders: tuple[int, ...]


def find_hosts(world: World, own_name: str, names: Sequence[str] = ()) -> Hosts:
    """Ask each rank where it runs; use `names` if there is one for each host, else each host's own name."""
    places: list[tuple[int, str]] = gather((world.local_rank, own_name))
    leaders = tuple(rank for rank, (local_rank, _) in enumerate(places) if local_rank == 0)
    own_names = tuple(places[rank][1] for rank in leaders)
    return Hosts(tuple(names) if len(names) == len(leaders) else own_names, leaders)


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
        found: list[list[Pair]] = gather(own)
    first_sides = {pair.hosts: pair for rank in reversed(hosts.leaders) for pair in found[rank]}
    return [first_sides[numbers] for numbers in sorted(first_sides)]


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
