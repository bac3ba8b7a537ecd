"""Measure every GPU while all are busy: matrix products, copies in its memory, and transfers over PCIe.

All ranks do the same at the same time, so that the GPUs of a host compete for power, air and PCIe as they do in
training. The kinds of work take turns, several rounds long: a GPU that gets hot shows it in all of them.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from launcher.collectives.bandwidth import MIB, synchronize
from launcher.collectives.pairs import Hosts
from launcher.collectives.watch import Watch
from launcher.distributed import World
from launcher.exchange import gather
from launcher.node import nvml
from launcher.node.processes import numa

LOAD_S = {"cpu": 1.0, "cuda": 10.0}
ROUND_S = 2.0
LEAST_ROUNDS = 3  # for a median
CALLS = {"cpu": 1, "cuda": 8}  # between two looks at the clock: a GPU does them one right after the other
SAMPLE_S = 0.1
SIDE = {"cpu": 512, "cuda": 8192}  # of the square matrices
COPY_BYTES = {"cpu": 32 * MIB, "cuda": 256 * MIB}  # more than the caches hold
TRANSFER_BYTES = 64 * MIB
READINGS = ("index", "temperature_c", "clock_mhz", "power_mw", "reasons", "corrected_errors", "uncorrected_errors")


@dataclass(frozen=True)
class Work:
    """One kind of work."""

    name: str  # flops, copy, to_gpu or from_gpu
    share: float  # of a round
    amount: float  # of one call: operations, or bytes
    call: Callable[[], object]


def measure_load(world: World, watch: Watch, hosts: Hosts, load_s: float) -> list[dict[str, Any]]:
    """Load the devices of all ranks for so many seconds; return on all ranks what each device did.

    `launcher.preflight.load` describes the values as MeasuredLoad.
    """
    # Pinned memory is then at the GPU's NUMA node; at another node, what joins the two would be measured.
    numa_node = numa.move_near(find_address(world.device))
    works = prepare_works(world.device)
    with watch.step("warming up for the load"):  # loads kernels, and allocates memory
        for work in works:
            measure_rate(world, work, 0)
    rounds = max(LEAST_ROUNDS, round(load_s / ROUND_S))
    rates: dict[str, list[float]] = {work.name: [] for work in works}
    with sample(find_gpu(world.device)) as samples:
        for number in range(rounds * len(works)):
            work = works[number % len(works)]
            with watch.step(f"the load ({work.name})"):
                dist.barrier()
                rates[work.name].append(measure_rate(world, work, work.share * load_s / rounds))
    own = {
        "rank": world.rank,
        "node": max(place for place, leader in enumerate(hosts.leaders) if leader <= world.rank),
        "model": name_device(world.device),
        "dtype": "fp16" if world.device.type == "cuda" else "fp32",
        **{name: median(found) for name, found in rates.items()},
        "sensors": summarize(samples),
        "numa_node": numa_node,
    }
    with watch.step("gathering the measurements under load"):
        return gather(own)


def prepare_works(device: torch.device) -> list[Work]:
    """Return all kinds of work on new buffers, those that heat most for longest.

    Matrices are random: zeros would need much less power. Those of a GPU are in fp16, which is as fast as bf16.
    """
    on_gpu = device.type == "cuda"
    side, copied = SIDE[device.type], COPY_BYTES[device.type]
    left, right = (torch.randn(side, side, device=device).to(torch.half if on_gpu else torch.float) for _ in range(2))
    product = torch.empty_like(left)
    source, target = (torch.ones(copied, dtype=torch.uint8, device=device) for _ in range(2))
    works = [
        Work("flops", 0.6 if on_gpu else 0.7, 2 * side**3, lambda: torch.mm(left, right, out=product)),
        Work("copy", 0.2 if on_gpu else 0.3, 2 * copied, lambda: target.copy_(source)),
    ]
    if on_gpu:
        pinned = torch.ones(TRANSFER_BYTES, dtype=torch.uint8).pin_memory()
        part = torch.ones(TRANSFER_BYTES, dtype=torch.uint8, device=device)
        works += [
            Work("to_gpu", 0.1, TRANSFER_BYTES, lambda: part.copy_(pinned, non_blocking=True)),
            Work("from_gpu", 0.1, TRANSFER_BYTES, lambda: pinned.copy_(part, non_blocking=True)),
        ]
    return works


def measure_rate(world: World, work: Work, slice_s: float) -> float:
    """Return how much work was done per second, over a whole time slice.

    A median of single calls would not see a device that is stopped now and then.
    """
    calls, began_at = 0, time.perf_counter()
    while True:
        for _ in range(CALLS[world.device.type]):
            work.call()
            calls += 1
        synchronize(world)
        elapsed_s = time.perf_counter() - began_at
        if elapsed_s >= slice_s:
            return calls * work.amount / elapsed_s


def find_gpu(device: torch.device) -> nvml.Gpu | None:
    """Return what reads a device's sensors; None for a CPU, and where NVML isn't."""
    if device.type != "cuda":
        return None
    return nvml.find_gpu(f"GPU-{torch.cuda.get_device_properties(device).uuid}", find_address(device))


def find_address(device: torch.device) -> str | None:
    """Return a GPU's PCI address as NVML writes it, 00000000:3b:00.0; None for a CPU, and if torch doesn't know it."""
    known: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    bus = getattr(known, "pci_bus_id", None)  # newer than the oldest torch that ranks may have
    return None if bus is None else f"{known.pci_domain_id:08x}:{bus:02x}:{known.pci_device_id:02x}.0"


def name_device(device: torch.device) -> str:
    """Return the model, with which others of its name are compared; of CPUs, with the threads that a rank has."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).name)
    return f"CPU rank ({platform.machine()}, threads: {torch.get_num_threads()})"


@contextmanager
def sample(gpu: nvml.Gpu | None) -> Iterator[list[dict[str, Any]]]:
    """Read the sensors of a GPU in a thread, at the beginning of the block, during it and at its end."""
    samples: list[dict[str, Any]] = []
    is_over = threading.Event()

    def read() -> None:
        is_last = False
        while gpu is not None:
            samples.append({name: gpu.read(name) for name in READINGS})
            if is_last:
                break
            is_last = is_over.wait(SAMPLE_S)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def summarize(samples: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what `launcher.preflight.load` describes as Sensors; None if there are none."""
    if not samples:
        return None
    known = {name: [value for each in samples if (value := each[name]) is not None] for name in READINGS}
    numbers, temperatures, clocks, powers, reasons, *errors = known.values()
    corrected, uncorrected = (found[-1] - found[0] if found else None for found in errors)
    return {
        "number": numbers[0] if numbers else None,
        "temperature_c": temperatures[-1] if temperatures else None,
        "hottest_c": max(temperatures, default=None),
        "clock_mhz": median(clocks) if clocks else None,
        "power_w": median(powers) / 1000 if powers else None,
        "reasons": reduce(or_, reasons, 0),
        "corrected_errors": corrected,
        "uncorrected_errors": uncorrected,
    }
