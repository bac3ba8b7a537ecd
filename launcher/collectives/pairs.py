"""Measure latency and bandwidth between every two hosts, over the network and backend that a training uses."""

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

TURNS = 50  # of a few bytes
LARGE_TURNS = 5
LARGE_BYTES = {"cpu": 2 * MIB, "cuda": 32 * MIB}


@dataclass(frozen=True)
class Hosts:
    """The hosts of a world in rank order: their names, and the rank that speaks for each."""

    names: tuple[str, ...]
    leaders: tuple[int, ...]


def find_hosts(world: World, own_name: str, names: Sequence[str] = ()) -> Hosts:
    """Ask each rank where it runs; `names` are the launcher's, else each host's own name is taken."""
    places: list[tuple[int, str]] = [(0, "")] * world.world_size
    dist.all_gather_object(places, (world.local_rank, own_name))
    leaders = tuple(rank for rank, (local_rank, _) in enumerate(places) if local_rank == 0)
    own_names = tuple(places[rank][1] for rank in leaders)
    return Hosts(tuple(names) if len(names) == len(leaders) else own_names, leaders)


def measure_pairs(world: World, watch: Watch, hosts: Hosts) -> list[Pair]:
    """Let local rank 0 of every two hosts play; pairs without a host in common play at once. The same on all ranks."""
    own: list[Pair] = []
    for number, pairs in enumerate(list_rounds(len(hosts.names)), 1):
        playing = [pair for pair in pairs if world.rank in (hosts.leaders[pair[0]], hosts.leaders[pair[1]])]
        met = [f"{hosts.names[first]} <-> {hosts.names[second]}" for first, second in playing]
        with watch.step("".join(met) or f"round {number} of the pairs of hosts"):
            own += [measure_pair(world, hosts, first, second) for first, second in playing]
            dist.barrier()  # or the next round would disturb this one
    with watch.step("gathering what was measured"):
        found: list[list[Pair]] = [[]] * world.world_size
        dist.all_gather_object(found, own)
    first_sides = {pair.hosts: pair for rank in reversed(hosts.leaders) for pair in found[rank]}
    return [first_sides[numbers] for numbers in sorted(first_sides)]


def measure_pair(world: World, hosts: Hosts, first: int, second: int) -> Pair:
    """Play ping-pong with a few bytes and with a few MiB."""
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
    """Return the seconds of one turn, there and back; the median, since a busy host delays some by far."""
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
