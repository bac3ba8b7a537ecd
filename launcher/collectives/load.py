"""Measure every GPU while all are busy: matrix products, copies in its memory, and transfers over PCIe.

All ranks do the same at the same time, so that the GPUs of a host compete for power, air and PCIe as they do in
training. The kinds of work take turns, several rounds long: a GPU that gets hot shows it in all of them.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
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

LOAD_S = {"cpu": 1.0, "cuda": 10.0}
ROUND_S = 2.0
LEAST_ROUNDS = 3  # for a median
BATCH_S = 0.01  # of work between two looks at the clock
MOST_CALLS = 64  # of a batch
SAMPLE_S = 0.1
SIDE = {"cpu": 512, "cuda": 8192}  # of the square matrices
COPY_BYTES = {"cpu": 32 * MIB, "cuda": 256 * MIB}  # more than the caches hold
TRANSFER_BYTES = 64 * MIB
PCI = Path("/sys/bus/pci/devices")
SENSORS = ("temperature_c", "clock_mhz", "power_mw", "reasons")
ERRORS = ("corrected_errors", "uncorrected_errors")  # of a GPU's memory
AMPERE = 8  # the first generation whose tensor cores know bf16


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
    with near_gpu(world.device) as numa_node:
        dtype, works = prepare_works(world.device)
    with watch.step("warming up for the load"):
        batches = {work.name: warm_up(world, work) for work in works}
    rounds = max(LEAST_ROUNDS, round(load_s / ROUND_S))
    rates: dict[str, list[float]] = {work.name: [] for work in works}
    with watch_gpu(find_gpu(world.device)) as summarize:
        for number in range(rounds * len(works)):
            work = works[number % len(works)]
            with watch.step(f"the load ({work.name})"):
                dist.barrier()
                rates[work.name].append(measure_rate(world, work, batches[work.name], work.share * load_s / rounds))
    own = {
        "rank": world.rank,
        "node": max(place for place, leader in enumerate(hosts.leaders) if leader <= world.rank),
        "model": name_device(world.device),
        "dtype": dtype,
        "to_gpu": None,
        "from_gpu": None,  # of CPUs
        **{name: median(found) for name, found in rates.items()},
        "sensors": summarize(),
        "numa_node": numa_node,
    }
    with watch.step("gathering the measurements under load"):
        return gather(own)


@contextmanager
def near_gpu(device: torch.device) -> Iterator[int | None]:
    """Run this thread on the CPUs of a GPU's NUMA node, and yield the node; None for a CPU, and where it isn't known.

    Memory that is pinned meanwhile is at that node, unless a container allows none of its CPUs. At another node, what
    joins the two would be measured.
    """
    folder = PCI / (find_address(device) or "")[4:]
    try:
        node, text = int((folder / "numa_node").read_text()), (folder / "local_cpulist").read_text()
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except (OSError, ValueError):
        node, ends = -1, []
    if node < 0:
        yield None
    elif sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        near = {cpu for cpu in allowed if any(each[0] <= cpu <= each[-1] for each in ends)}
        os.sched_setaffinity(0, near or allowed)
        try:
            yield node
        finally:
            os.sched_setaffinity(0, allowed)


def prepare_works(device: torch.device) -> tuple[str, list[Work]]:
    """Return the type of the matrices, and all kinds of work on new buffers, those that heat most for longest.

    Matrices are random: zeros would need much less power.
    """
    on_gpu = device.type == "cuda"
    dtype = choose_dtype(device)
    side, copied = SIDE[device.type], COPY_BYTES[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
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
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype], works


def choose_dtype(device: torch.device) -> torch.dtype:
    """Return the type that models are trained in there."""
    if device.type == "cpu":
        return torch.float32
    is_new = torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] >= AMPERE
    return torch.bfloat16 if is_new else torch.float16


def warm_up(world: World, work: Work) -> int:
    """Do some work, and return how many calls make a batch."""
    work.call()  # loads kernels, and allocates memory
    synchronize(world)
    began_at = time.perf_counter()
    work.call()
    synchronize(world)
    return int(min(MOST_CALLS, max(1, BATCH_S / (time.perf_counter() - began_at))))


def measure_rate(world: World, work: Work, batch: int, slice_s: float) -> float:
    """Return how much work was done per second, over a whole time slice.

    A median of single calls would not see a device that is stopped now and then.
    """
    done, began_at = 0, time.perf_counter()
    while True:
        for _ in range(batch):
            work.call()
        synchronize(world)
        done += batch
        elapsed_s = time.perf_counter() - began_at
        if elapsed_s >= slice_s:
            return done * work.amount / elapsed_s


def find_gpu(device: torch.device) -> nvml.Gpu | None:
    """Return what reads a device's sensors; None for a CPU, and where NVML isn't."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # newer versions of torch have it
    return nvml.find_gpu(None if uuid is None else f"GPU-{uuid}", find_address(device))


def find_address(device: torch.device) -> str | None:
    """Return a GPU's PCI address as NVML writes it, 00000000:3b:00.0; None for a CPU, and if torch doesn't know it."""
    known: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    bus = getattr(known, "pci_bus_id", None)
    return None if bus is None else f"{known.pci_domain_id:08x}:{bus:02x}:{known.pci_device_id:02x}.0"


def name_device(device: torch.device) -> str:
    """Return the model, with which others of its name are compared; of CPUs, with the threads that a rank has."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).name)
    return f"CPU rank ({platform.machine()}, threads: {torch.get_num_threads()})"


@contextmanager
def watch_gpu(gpu: nvml.Gpu | None) -> Iterator[Callable[[], dict[str, Any] | None]]:
    """Read the sensors of a GPU in a thread during the block; yield what sums them up, also after it."""
    if gpu is None:
        yield lambda: None
        return
    is_over, before = threading.Event(), {name: gpu.read(name) for name in ERRORS}
    seen: dict[str, list[int]] = {name: [] for name in SENSORS}

    def look() -> None:
        while not is_over.wait(SAMPLE_S):
            for name, values in seen.items():
                value = gpu.read(name)
                values += [value] if value is not None else []

    def summarize() -> dict[str, Any]:
        temperatures, clocks, powers, reasons = seen.values()
        after = {name: gpu.read(name) for name in ERRORS}
        known = [name for name in ERRORS if None not in (before[name], after[name])]
        return {
            "number": gpu.read("index"),
            "temperature_c": temperatures[-1] if temperatures else None,
            "hottest_c": max(temperatures, default=None),
            "clock_mhz": median(clocks) if clocks else None,
            "power_w": median(powers) / 1000 if powers else None,
            "reasons": reduce(or_, reasons, 0),
            **{name: after[name] - before[name] for name in known},  # type: ignore[operator]  # none of these is None
        }

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield summarize
    finally:
        is_over.set()
        thread.join()
