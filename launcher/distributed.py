"""Find out where this process runs, and join the ranks of the run into one process group.

A trainer needs three lines of it, and runs unchanged under torchrun and as a single process:

    world = distributed.init()            # rank, world size, device
    model = Model().to(world.device)
    distributed.shutdown()

Torch and the standard library only, so this file can be copied into another project.
Plain dataclasses and no syntax beyond Python 3.9: it runs on whatever Python the nodes have torch in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BACKENDS = ("auto", "nccl", "gloo")


class WorldError(ValueError):
    """The environment, or the caller, describes a world that can't be."""


class DeviceError(RuntimeError):
    """There is no device here that this rank could have to itself."""


@dataclass(frozen=True)
class Place:
    """Where the environment puts this process; `launched_by` says who told it."""

    launched_by: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


@dataclass(frozen=True)
class World:
    """All that a trainer needs to know about its place among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    launched_by: str

    @property
    def is_main(self) -> bool:
        """Be true on rank 0, the one that prints and saves."""
        return self.rank == 0


def init(backend: str = "auto", timeout_s: float = 600) -> World:
    """Choose backend and device, join the process group, and return this process's world.

    `auto` is nccl where torch sees a GPU, else gloo; gloo runs on the CPU.
    `timeout_s` bounds the wait for the other ranks, here and in every collective.
    A single process gets a group of one, without a port, so that collectives need no special case.
    """
    place = find_place(os.environ)
    backend = choose_backend(backend)
    device = choose_device(place, backend, torch.cuda.device_count() if backend == "nccl" else 0)
    timeout = timedelta(seconds=timeout_s)
    store = connect(place, timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if torch.cuda.device_count() < place.local_world_size:
            refuse_shared_gpu(place, store, str(torch.cuda.get_device_properties(device).uuid))
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        # NCCL then connects here and not in the first collective, and barrier() knows its device.
        device_id=device if device.type == "cuda" else None,
    )
    return World(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        device=device,
        backend=backend,
        launched_by=place.launched_by,
    )


def shutdown() -> None:
    """Leave the process group together with the other ranks, at the end of a run that went well."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(exit_code: int) -> NoReturn:
    """End this process at once, without a word to the other ranks, who may be gone.

    An orderly exit is not safe then: gloo's threads turn one in four into SIGABRT while Python takes itself
    down (torch 2.13), which hides the exit code, and NCCL waits for its peers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def barrier() -> None:
    """Wait until every rank has come here."""
    dist.barrier()


def files_folder() -> Path | None:
    """Return the folder of this rank's machine whose files the launcher brings home, where there is one."""
    folder = os.environ.get("LAUNCH_FILES")
    return Path(folder) if folder else None


def is_main() -> bool:
    """Be true on rank 0, also before `init()` and when the environment is wrong."""
    return os.environ.get("RANK", "") in ("", "0")


def find_place(environ: Mapping[str, str]) -> Place:
    """Ask each detector in turn; the last one always answers."""
    return next(place for detect in DETECTORS if (place := detect(environ)) is not None)


def detect_torchrun(environ: Mapping[str, str]) -> Place | None:
    """Read the variables that torchrun sets, all or none of them."""
    missing = [name for name in TORCHRUN_VARIABLES if not environ.get(name)]
    if len(missing) == len(TORCHRUN_VARIABLES):
        return None
    if missing:
        present = [name for name in TORCHRUN_VARIABLES if name not in missing]
        raise WorldError(
            f"{_listed(present)} set but {_listed(missing)} not: "
            "start with torchrun, which sets all six, or unset them for a single process"
        )
    place = Place(
        launched_by="torchrun",
        rank=_whole_number(environ, "RANK"),
        world_size=_whole_number(environ, "WORLD_SIZE"),
        local_rank=_whole_number(environ, "LOCAL_RANK"),
        local_world_size=_whole_number(environ, "LOCAL_WORLD_SIZE"),
    )
    if place.rank >= place.world_size:
        raise WorldError(f"RANK must be below WORLD_SIZE, got {place.rank} of {place.world_size}")
    if place.local_rank >= place.local_world_size:
        raise WorldError(
            f"LOCAL_RANK must be below LOCAL_WORLD_SIZE, got {place.local_rank} of {place.local_world_size}"
        )
    return place


def detect_single_process(environ: Mapping[str, str]) -> Place:
    """Take this process as the only one."""
    return Place(launched_by="single process")


# In this order: whoever started the process last has set the variables that count.
DETECTORS = (detect_torchrun, detect_single_process)


def choose_backend(backend: str) -> str:
    """Resolve `auto`, and refuse what this machine can't do."""
    if backend not in BACKENDS:
        raise WorldError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "auto":
        return "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl" and not torch.cuda.is_available():
        raise DeviceError("backend nccl needs a GPU, and torch sees none here; use gloo to run on the CPU")
    return backend


def choose_device(place: Place, backend: str, device_count: int) -> torch.device:
    """Give each local rank a GPU of its own; one visible GPU is `cuda:0` whatever the local rank."""
    if backend != "nccl":
        return torch.device("cpu")
    if device_count == 1:
        return torch.device("cuda", 0)
    if place.local_rank >= device_count:
        raise DeviceError(
            f"local rank {place.local_rank} has no GPU of its own: {place.local_world_size} processes on "
            f"this host, {device_count} GPUs visible; NCCL would stop with 'Duplicate GPU detected', "
            "so start one process per GPU"
        )
    return torch.device("cuda", place.local_rank)


def connect(place: Place, timeout: timedelta) -> Store:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT; a single process meets nobody."""
    if place.launched_by == "single process":
        return dist.HashStore()  # type: ignore[attr-defined]  # documented, but missing from torch's stubs
    store: Store = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
    store.set_timeout(timeout)
    return store


def refuse_shared_gpu(place: Place, store: Store, gpu: str) -> None:
    """Compare this rank's GPU with its local peers' over the store, before NCCL meets itself there.

    Needed where fewer GPUs are visible than processes run: either each rank was given its own
    (`--gpus-per-task=1`), or all were given the same one, and only the GPUs' UUIDs tell these apart.
    """
    store.set(f"gpu/{place.rank}", gpu)
    first = place.rank - place.local_rank
    for peer in range(first, first + place.local_world_size):
        if peer != place.rank and store.get(f"gpu/{peer}").decode() == gpu:
            raise DeviceError(
                f"ranks {min(peer, place.rank)} and {max(peer, place.rank)} share GPU {gpu}: "
                "NCCL would stop with 'Duplicate GPU detected', so start one process per GPU"
            )


def _listed(names: list[str]) -> str:
    """Write `A is`, or `A, B are`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _whole_number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise WorldError(f"{name} must be a whole number, got {environ[name]!r}")
    return int(environ[name])
