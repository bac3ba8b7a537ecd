"""Measure the speed of the collectives by size; algorithm and bus bandwidth are as nccl-tests defines them.

`size` is nccl-tests' S: what a rank ends with (all_gather), starts with (reduce_scatter, all_to_all), or both.
Time is the mean of several iterations between two barriers, on the slowest rank; algbw is S / time.
Bus bandwidth is comparable with what the hardware can do, whatever the number of ranks:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.collectives.checks import run_collective
from launcher.collectives.watch import Watch
from launcher.distributed import World

KIB = 1024
MIB = 1024 * KIB
SMALLEST_BYTES = 4 * KIB
GROWTH = 16
LARGEST_BYTES = {"cpu": 4 * MIB, "cuda": 1024 * MIB}  # 64 MiB are too few for NVLink's full speed
ITERATIONS = 20
BUDGET_S = 0.1  # per row: a slow network gets fewer iterations
TOO_SLOW_S = 2.0  # a size that would take longer isn't measured
FLOAT_BYTES = 4
HEADING = "bandwidth       size (KiB)   time (us)  algbw (GB/s)  busbw (GB/s)"


@dataclass(frozen=True)
class BandwidthRow:
    """One row of the table; bandwidths are in bytes per second."""

    collective: str
    size_bytes: int
    iterations: int
    time_s: float
    algbw: float
    busbw: float

    def __str__(self) -> str:
        measured = f"{self.collective:14} {self.size_bytes / KIB:>11.0f} {self.time_s * 1e6:>11.1f}"
        return f"{measured} {self.algbw / 1e9:>13.3f} {self.busbw / 1e9:>13.3f}"


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw as nccl-tests' PERFORMANCE.md gives it."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def list_sizes(largest_bytes: int) -> list[int]:
    """Return sizes from 4 KiB on, each 16 times the one before, and `largest_bytes` last."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] < largest_bytes:
        sizes.append(min(sizes[-1] * GROWTH, largest_bytes))
    return sizes


def measure_bandwidth(
    world: World, watch: Watch, collectives: Sequence[str], largest_mib: int | None = None
) -> Iterator[BandwidthRow]:
    """Measure collectives in growing sizes; all ranks yield the same rows.

    From 1 MiB on, the time grows with the size; below it, it is mostly latency.
    """
    for name in collectives:
        speed = None
        for size_bytes in list_sizes(largest_mib * MIB if largest_mib else LARGEST_BYTES[world.device.type]):
            if speed and speed.size_bytes >= MIB and size_bytes / speed.algbw > TOO_SLOW_S:
                break
            with watch.step(f"bandwidth of {name}, {size_bytes // KIB} KiB"):
                speed = measure_speed(world, name, size_bytes)
            yield speed


def measure_speed(world: World, name: str, size_bytes: int) -> BandwidthRow:
    """Time one collective at one size, which is rounded so that all ranks have equal parts."""
    part = max(1, size_bytes // FLOAT_BYTES // world.world_size)
    whole = part * world.world_size
    received = torch.zeros(part if name == "reduce_scatter" else whole, device=world.device)
    sent = torch.zeros(part if name == "all_gather" else whole, device=world.device)
    time_collective(world, name, received, sent, 1)  # connects, and allocates memory
    once_s = time_collective(world, name, received, sent, 1)
    iterations = int(min(ITERATIONS, max(1, BUDGET_S / once_s)))
    time_s = time_collective(world, name, received, sent, iterations)
    algbw = size_bytes / time_s
    return BandwidthRow(name, size_bytes, iterations, time_s, algbw, algbw * bus_factor(name, world.world_size))


def time_collective(world: World, name: str, received: Tensor, sent: Tensor, iterations: int) -> float:
    """Return the mean seconds per iteration on the slowest rank, the same value on all ranks."""
    dist.barrier()
    synchronize(world)
    began_at = time.perf_counter()
    for _ in range(iterations):
        run_collective(world, name, received, sent)
    synchronize(world)
    seconds = torch.tensor((time.perf_counter() - began_at) / iterations, dtype=torch.float64, device=world.device)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def synchronize(world: World) -> None:
    """Wait until the GPU has finished; gloo's calls return only when they are done."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
