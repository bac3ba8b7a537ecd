"""Find out where this process runs, and join the ranks of the run into one process group.

A training script needs three lines and then runs unchanged under torchrun, `srun`, `mpirun` and as a single process:

    world = distributed.init()            # rank, world size, device
    model = Model().to(world.device)
    distributed.shutdown()

`shutdown()` leaves the process group; Python then exits as usual. With gloo that exit has been seen to abort with
SIGABRT, in gloo's threads, and to hang while a DDP model is freed (torch 2.13). On CPUs, call `distributed.leave(0)`
after `shutdown()`, before the function with the model returns, as `examples/train_distributed_example.py` does.

This file needs only torch and the standard library, so you can copy it into another project.
It uses plain dataclasses and no syntax beyond Python 3.9, to run on whatever Python has torch on the hosts.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import logging
import math
import os
import random
import re
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # missing from torch's stubs
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
TORCHRUN_VARIABLES = (*RANK_VARIABLES, "MASTER_ADDR", "MASTER_PORT")
TORCHRUN_MARK = "TORCHELASTIC_RUN_ID"  # only torchrun and `launch` set this variable
BACKENDS = ("auto", "nccl", "gloo")

SINGLE_PROCESS, TORCHRUN, SRUN = "single process", "torchrun", "srun"
# Steps that are a shell and no task: Slurm counts these down from 0xffffffff (slurm.h, SLURM_BATCH_SCRIPT and on).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Ports that no service is registered for, below those that the kernel hands out (32768 on).
FIRST_PORT, PORT_COUNT = 15_000, 15_000
TORCH_PORT = 29_500
MAX_PORT = 65_535
DEVICES = Path("/dev")
SIOCGIFADDR = 0x8915  # linux/sockios.h

log = logging.getLogger(__name__)
Number = TypeVar("Number", float, torch.Tensor)
Result = TypeVar("Result")


class WorldError(ValueError):
    """The environment, or the caller, describes an impossible set of ranks."""


class DeviceError(RuntimeError):
    """This host has no device that this rank could have to itself."""


@dataclass(frozen=True)
class Place:
    """This process's place among the ranks, as the environment gives it; `launched_by` names who set it."""

    launched_by: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1  # 0: not set, so `init` counts them
    node_rank: int = 0
    node_count: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = TORCH_PORT
    job_id: str | None = None
    peers: tuple[str, ...] = ()  # names of the nodes, if the environment lists them


@dataclass(frozen=True)
class World:
    """All that a training script needs to know about its place among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    launched_by: str
    node_rank: int = 0
    node_count: int = 1
    host: str = ""
    job_id: str | None = None
    timeout_s: float = 600  # the time limit of the collectives

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, the one that prints and saves."""
        return self.rank == 0

    def __str__(self) -> str:
        """Describe this rank in one line: `rank 3 of 8 (srun) on gpu2, local rank 1 of 4, cuda:1, nccl`."""
        local = f", local rank {self.local_rank} of {self.local_world_size}" if self.world_size > 1 else ""
        where = f"rank {self.rank} of {self.world_size} ({self.launched_by}) on {self.host}"
        return f"{where}{local}, {self.device}, {self.backend}"


@dataclass(frozen=True)
class Attempt:
    """One start of a run, and what identifies a later start of the same run."""

    name: str | None = None  # the run id in the logs of `launch`, else slurm-JOB
    command: str = ""  # the `launch` command line that started the built-in trainer
    job_id: str | None = None
    requeues: int = 0  # how often Slurm has put the job back into its queue
    restarts: int = 0  # how often `launch` has started the run again, or torchrun its ranks


# ---- joining and leaving -----------------------------------------------------------------------------------------


def init(backend: str = "auto", timeout_s: float = 600) -> World:
    """Choose backend and device, join the process group, and return this process's world.

    `auto` is nccl if torch sees a GPU, else gloo; gloo runs on the CPU.
    Raise DeviceError if CUDA can't use this host's GPUs, or if the ranks' backends differ.
    `timeout_s` bounds the wait for the other ranks, here and in every collective.
    Torch uses no more threads than this rank's share of the CPUs, unless OMP_NUM_THREADS is set.
    A single process gets a group of one, without a port, so that collectives need no special case.
    """
    place = check_place(find_place(os.environ))
    check_address(place, os.environ)
    warn_of_idle_tasks(place, os.environ)
    is_chosen, backend = backend != "auto", choose_backend(backend, os.environ)
    if not is_chosen and backend == "gloo":
        warn_of_idle_gpus(place, os.environ)
    device = choose_device(place, backend, torch.cuda.device_count() if backend == "nccl" else 0)
    timeout = timedelta(seconds=timeout_s)
    store = connect(place, timeout)
    agree_on_backend(place, store, backend)
    place = count_local_ranks(place, store, os.environ)
    overrule_variables(place, store)
    bind_gloo(place, os.environ)
    limit_threads(place, os.environ)
    if device.type == "cuda":
        if torch.__version__.partition("+")[0] == "2.7.0":
            # It makes the NCCL of a group with a device non-blocking, which hangs now and then (pytorch#153960).
            os.environ.setdefault("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
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
    world = World(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        device=device,
        backend=backend,
        launched_by=place.launched_by,
        node_rank=place.node_rank,
        node_count=place.node_count,
        host=host_name(os.environ),
        job_id=place.job_id,
        timeout_s=timeout_s,
    )
    log.info("%s", world)
    return world


def shutdown() -> None:
    """Leave the process group together with the other ranks, at the end of a successful run."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(exit_code: int) -> NoReturn:
    """End this process at once, without waiting for the other ranks, which may be gone.

    A normal exit isn't safe then: while Python shuts down, gloo's threads turn one exit in four into SIGABRT
    (torch 2.13), which hides the exit code, and NCCL waits for its peers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


# ---- other helpers; without a process group they act as if there were one rank ---------------------------------------


def is_main() -> bool:
    """Return whether this is rank 0, also before `init()`; in a wrong environment return True."""
    if dist.is_initialized():
        return bool(dist.get_rank() == 0)
    try:
        return find_place(os.environ).rank == 0
    except WorldError:  # then any rank may report what is wrong
        return True


def rank_zero_only(function: Callable[..., Result]) -> Callable[..., Result | None]:
    """Make `function` do nothing and return None on every rank but 0. It must not contain a collective."""

    @functools.wraps(function)
    def on_rank_zero(*args: Any, **kwargs: Any) -> Result | None:
        return function(*args, **kwargs) if is_main() else None

    return on_rank_zero


def barrier() -> None:
    """Wait until every rank has called this."""
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def rank_ordered() -> Iterator[None]:
    """Run the block on one rank after another, from rank 0; every rank must call this. An error passes the turn on."""
    rank, world_size = _rank_and_size()
    for _ in range(rank):
        barrier()
    try:
        yield
    finally:
        for _ in range(world_size - rank):
            barrier()


def gather_ranks(world: World) -> list[str]:
    """Return one line per rank, in rank order, that says where it runs; every rank must call this.

    `rank 3  node2, cuda:1 GPU-1f2e..., 80 GB, pid 4711`, where Slurm runs `rank 3  SLURMD_NODENAME=node2, ...`. On CPUs
    `cpu`.
    """
    name = os.environ.get("SLURMD_NODENAME")
    where = f"SLURMD_NODENAME={name}" if name else world.host
    line = f"{f'rank {world.rank}':<7} {where}, {_describe_device(world.device)}, pid {os.getpid()}"
    lines = [line] * world.world_size
    if dist.is_initialized():
        dist.all_gather_object(lines, line)
    return lines


def all_reduce_mean(value: Number) -> Number:
    """Return the mean of `value` over the ranks: a number for a number, a tensor of any shape for a tensor.

    A tensor is left as it is, and a new one returned; it must be floating-point and on this rank's device.
    """
    _, world_size = _rank_and_size()
    if not isinstance(value, torch.Tensor):
        on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
        total = torch.tensor(float(value), dtype=torch.float64, device="cuda" if on_gpu else "cpu")
        return float(all_reduce_mean(total).item())
    if not value.is_floating_point():
        raise TypeError(f"a mean needs a floating-point tensor, got {value.dtype}")
    total = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total / world_size


def seed_everything(seed: int, rank: int | None = None) -> int:
    """Seed Python's, numpy's and torch's generators by `seed` + rank, and return that sum.

    rank: by default this process's; give the ranks that share a model's matrices the same one.
    Weights that must be equal on all ranks are made under `torch.manual_seed(seed)` before, or broadcast.
    """
    seed += _rank_and_size()[0] if rank is None else rank
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:  # if nothing has imported it, nothing draws from it
        sys.modules["numpy"].random.seed(seed % 2**32)
    return seed


def batch_per_rank(global_batch: int, world_size: int | None = None) -> int:
    """Return each rank's share of a batch; raise WorldError if it can't be split evenly."""
    world_size = _rank_and_size()[1] if world_size is None else world_size
    if global_batch < world_size or global_batch % world_size:
        raise WorldError(f"a global batch of {global_batch} can't be split evenly among {world_size} ranks")
    return global_batch // world_size


def cpu_count() -> int:
    """Return how many CPUs this rank may use: its share of those that the process may run on, at least 1."""
    try:
        return share_cpus(find_place(os.environ), os.environ, count_usable_cpus())
    except WorldError:
        return 1


def files_folder() -> Path | None:
    """Return the directory on this host whose files `launch` copies back, or None if there is none."""
    folder = os.environ.get("LAUNCH_FILES")
    return Path(folder) if folder else None


def find_attempt() -> Attempt:
    """Find out how this run is identified, and what stays the same when it is started again."""
    environ = os.environ
    job_id = environ.get("SLURM_JOB_ID") or None
    # A job inherits the variables of the run that submitted it, but isn't part of that run.
    is_launched = job_id is None or environ.get("LAUNCH_SLURM_JOB") == job_id
    run_id = environ.get("LAUNCH_MARK", "").partition(".")[0] if is_launched else ""
    # torchrun gives each of its runs an id, but for the static rendezvous.
    elastic_id = environ.get(TORCHRUN_MARK, "none")
    by_hand = None if elastic_id == "none" else f"torchrun-{elastic_id[:8]}"
    requeues = environ.get("SLURM_RESTART_COUNT", "")
    restarts = environ.get("LAUNCH_ATTEMPT" if run_id else "TORCHELASTIC_RESTART_COUNT", "")
    return Attempt(
        name=run_id or (f"slurm-{job_id}" if job_id else by_hand),
        command=environ.get("LAUNCH_COMMAND", "") if is_launched else "",
        job_id=job_id,
        requeues=int(requeues) if job_id and requeues.isdecimal() else 0,
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )


# ---- this process's place among the ranks ----------------------------------------------------------------------------


def find_place(environ: Mapping[str, str]) -> Place:
    """Try each detector in turn; the last one always returns a place."""
    return next(place for detect in DETECTORS if (place := detect(environ)) is not None)


def check_place(place: Place) -> Place:
    """Return the place, or raise WorldError for an impossible one, in which the ranks would wait forever."""
    _check_below(place, "rank", place.rank, place.world_size)
    if place.local_world_size:
        _check_below(place, "local rank", place.local_rank, place.local_world_size)
    if not 1 <= place.master_port <= MAX_PORT:
        raise WorldError(f"MASTER_PORT must be between 1 and {MAX_PORT}, got {place.master_port}")
    if place.world_size > 1:
        try:
            socket.getaddrinfo(place.master_addr, None)
        except OSError:
            fix = "set MASTER_ADDR to an address of that host on all ranks"
            raise WorldError(f"can't resolve {place.master_addr}, the host of rank 0; fix: {fix}") from None
    return place


def check_address(place: Place, environ: Mapping[str, str]) -> None:
    """Raise WorldError if rank 0 can't be reached at MASTER_ADDR: the ranks would wait for it until the timeout.

    Every rank can tell that a loopback address is wrong for several nodes; only rank 0 can tell that the address is
    another node's. torchrun's variables aren't checked: there the address may be a forwarded port's.
    """
    if place.world_size == 1 or place.launched_by == TORCHRUN:
        return
    address, host = place.master_addr, host_name(environ)
    source = "MASTER_ADDR is" if environ.get("MASTER_ADDR") else "the first node is"
    is_set_under_srun = place.launched_by == SRUN and environ.get("MASTER_ADDR")
    if place.node_count > 1 and _means_loopback(address):
        fix = "unset MASTER_ADDR" if is_set_under_srun else "set MASTER_ADDR to rank 0's host on all ranks"
        raise WorldError(f"{source} {address}, but the ranks are on {place.node_count} nodes; fix: {fix}")
    if place.rank == 0 and address not in (host, socket.gethostname()) and not _is_own(address):
        fix = "unset MASTER_ADDR" if is_set_under_srun else f"set MASTER_ADDR to {host} on all ranks"
        raise WorldError(f"{source} {address}, but rank 0 is on {host}; fix: {fix}")


def detect_torchrun(environ: Mapping[str, str]) -> Place | None:
    """Read the variables that torchrun sets; an incomplete set is left to the other detectors.

    In an srun task they count if torchrun or `launch` has left its mark, or if another launch method set them inside
    the task. Those that a batch script exports are the same in every task, so they don't count.
    """
    if not all(environ.get(name) for name in TORCHRUN_VARIABLES):
        return None
    task = None if environ.get(TORCHRUN_MARK) else _read_slurm_task(environ)
    if task is not None and _are_inherited(_contradictions(task, environ), environ):
        return None
    return _place_of_variables(environ)


def detect_open_mpi(environ: Mapping[str, str]) -> Place | None:
    """Read the variables of Open MPI's mpirun; they win over Slurm's, because mpirun starts its daemons with srun."""
    names = ["OMPI_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    if not environ.get(names[0]):
        return None
    # Each run of mpirun has its own namespace, which all of its ranks share.
    port = _port_of(environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""))
    return _place_of_mpi("mpirun", environ, names, port)


def detect_slurm_task(environ: Mapping[str, str]) -> Place | None:
    """Read the variables of a task that srun started; an sbatch script or an interactive shell is not a task.

    Rank 0 is on the first node of the step, unless MASTER_ADDR is set; the port is derived from the job and step.
    Slurm's values win over torchrun variables that srun passed on; those set inside the task are an error, unless
    the program that set them replaced itself by `exec`.
    """
    place = _read_slurm_task(environ)
    wrong = _contradictions(place, environ) if place is not None else {}
    if not _are_inherited(wrong, environ):
        name, value = next(iter(wrong.items()))
        raise WorldError(f"{name} is {environ[name]}, but srun says {value}; fix: unset {name}")
    return place


def detect_pmi(environ: Mapping[str, str]) -> Place | None:
    """Read the variables of MPICH's, Intel's and Cray's mpiexec, which use PMI."""
    if not environ.get("PMI_RANK"):
        return None
    is_cray = bool(environ.get("PMI_LOCAL_RANK"))
    local = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE") if is_cray else ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return _place_of_mpi("mpiexec", environ, ["PMI_RANK", "PMI_SIZE", *local], TORCH_PORT)


def detect_variables(environ: Mapping[str, str]) -> Place | None:
    """Read torchrun's variables if they were set by hand without LOCAL_WORLD_SIZE, which torch itself doesn't need.

    Not in a Slurm job: there a script usually exports them, and its rank would wait for tasks that never start.
    """
    missing = [name for name in TORCHRUN_VARIABLES if not environ.get(name)]
    if missing != ["LOCAL_WORLD_SIZE"] or environ.get("SLURM_JOB_ID"):
        return None
    return _place_of_variables(environ)


def detect_single_process(environ: Mapping[str, str]) -> Place:
    """Treat this process as the only one, unless some variables say that it isn't."""
    present = [name for name in TORCHRUN_VARIABLES if environ.get(name)]
    if present:
        missing = [name for name in TORCHRUN_VARIABLES if name not in present]
        starter = "srun or torchrun" if environ.get("SLURM_JOB_ID") else "torchrun"
        raise WorldError(
            f"{_listed(present)} set but {_listed(missing)} not; "
            f"fix: start with {starter}, or unset them for a single process"
        )
    return Place(launched_by=SINGLE_PROCESS, job_id=environ.get("SLURM_JOB_ID"))


# In this order: the variables of whatever started this process last are the ones that count.
DETECTORS = (
    detect_torchrun, detect_open_mpi, detect_slurm_task, detect_pmi, detect_variables, detect_single_process,
)  # fmt: skip


def expand_nodes(text: str) -> list[str]:
    """Return the names in Slurm's `gpu[1-3,007-010],a[1-2]b`, in the same order, without calling scontrol."""
    element = r"(?:[^][,]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"
    if re.fullmatch(rf"{element}(?:,{element})*", text) is None:
        raise WorldError(f"can't read the list of nodes {text!r}")
    return [name for found in re.findall(element, text) for name in _expand(found)]


def expand_counts(text: str) -> list[int]:
    """Return the numbers per node in Slurm's `2(x3),1`: 2, 2, 2 and 1."""
    counts: list[int] = []
    for element in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x([1-9]\d*)\))?", element)
        if found is None:
            raise WorldError(f"can't read the tasks per node {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def host_name(environ: Mapping[str, str]) -> str:
    """Return this node's name: Slurm's name for it under Slurm, else the host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


# ---- backend, device, network ------------------------------------------------------------------------------------


def choose_backend(backend: str, environ: Mapping[str, str]) -> str:
    """Resolve `auto`, and refuse a backend that this host can't run, or `auto` if it has GPUs that CUDA can't use."""
    if backend not in BACKENDS:
        raise WorldError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "gloo" or torch.cuda.is_available():
        return "nccl" if backend == "auto" else backend
    gpus = [path for path in DEVICES.glob("nvidia[0-9]*") if os.access(path, os.R_OK)]  # a job may have no right to it
    if torch.version.cuda and gpus and not hides_gpus(environ):
        has = f"{host_name(environ)} has GPUs, but torch {torch.__version__} can't use them: {find_cuda_fault()}"
        test = "test with python -c 'import torch; torch.cuda.init()'"
        raise DeviceError(f"{has}; fix: {test}; to train on the CPU, use backend gloo")
    if backend == "nccl":
        raise DeviceError("backend nccl needs a GPU, but torch sees none here; fix: use gloo to run on the CPU")
    return "gloo"


def hides_gpus(environ: Mapping[str, str]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES hides all GPUs, as an empty value or -1 does: its first entry names none."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and re.match(r"\s*\+?\d|GPU-|MIG-", visible) is None


def find_cuda_fault() -> str:
    """Return why CUDA can't start, from an error of torch that holds advice as well."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # its type depends on the cause and on the version
        line = str(error).strip().partition("\n")[0]
        return line[line.find("Error ") :] if "Error " in line else line.partition(". ")[0].rstrip(".")
    return "it sees none of them"


def agree_on_backend(place: Place, store: Store, backend: str) -> None:
    """Raise DeviceError on every rank if they use different backends: they would wait for each other in different ones.

    The last rank to come compares them. Rank 0 is the last to fail, because its process may hold the store.
    """
    key = f"backends/{(store.add('backends', 1) - 1) // place.world_size}"  # a process may call `init` again
    store.set(f"{key}/{backend}", f"rank {place.rank} on {host_name(os.environ)} uses {backend}")
    if store.add(f"{key}/known", 1) == place.world_size:
        used = [store.get(f"{key}/{name}").decode() for name in ("nccl", "gloo") if store.check([f"{key}/{name}"])]
        store.set(f"{key}/agreed", ", but ".join(used) if len(used) > 1 else "")
    difference = store.get(f"{key}/agreed").decode()
    if difference:
        if store.add(f"{key}/heard", 1) == place.world_size:
            store.set(f"{key}/ended", "")
        if place.rank == 0:
            store.wait([f"{key}/ended"])
        raise DeviceError(f"{difference}; fix: let torch see a GPU for every rank, or choose gloo for all of them")


def warn_of_idle_tasks(place: Place, environ: Mapping[str, str]) -> None:
    """Warn if an sbatch script, or a shell of salloc, trains with one process although its job has more tasks or nodes.

    SLURM_NTASKS is set only if a number of tasks was requested; SLURM_TASKS_PER_NODE may then be the number of CPUs.
    """
    if place.launched_by != SINGLE_PROCESS:
        return
    tasks = environ.get("SLURM_NTASKS") or "1"
    nodes = _first_of(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or "1"
    if tasks != "1" or nodes != "1":
        size = f"{tasks} tasks" if tasks != "1" else f"{nodes} nodes"
        log.warning("only one process trains, but this Slurm job has %s; fix: start it with srun", size)


def warn_of_idle_gpus(place: Place, environ: Mapping[str, str]) -> None:
    """Warn once per node if Slurm allocated GPUs but torch is about to train without them."""
    if place.local_rank or not place.job_id or hides_gpus(environ):
        return
    count = _first_of(environ, "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE") or ""
    if count.rpartition(":")[2] not in ("", "0"):  # `h100:8` has a type
        host = host_name(environ)
        log.warning("Slurm gave GPUs (%s) on %s, but torch %s sees none: using the CPU", count, host, torch.__version__)


def choose_device(place: Place, backend: str, device_count: int) -> torch.device:
    """Give each local rank its own GPU; if only one is visible, it is `cuda:0` whatever the local rank."""
    if backend != "nccl":
        return torch.device("cpu")
    if device_count == 1:
        return torch.device("cuda", 0)
    if place.local_rank >= device_count:
        processes = place.local_world_size or place.local_rank + 1
        raise DeviceError(
            f"local rank {place.local_rank} has no GPU of its own: this host has {processes} processes but "
            f"{device_count} visible GPUs, and NCCL would stop with 'Duplicate GPU detected'; "
            "fix: start one process per GPU"
        )
    return torch.device("cuda", place.local_rank)


def bind_gloo(place: Place, environ: Mapping[str, str]) -> None:
    """Set gloo's interface if this host's name resolves to a loopback address, as on Debian through /etc/hosts.

    gloo would otherwise give that address to the other nodes, and all would wait for each other.
    """
    if place.node_count == 1 or environ.get("GLOO_SOCKET_IFNAME") or not _is_loopback(socket.gethostname()):
        return
    for peer in (*place.peers, place.master_addr):
        if not _is_loopback(peer) and (name := interface_towards(peer)) is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
            return


def interface_towards(host: str) -> str | None:
    """Return the name of the network interface that packets to `host` leave through; IPv4 only."""
    import fcntl  # not available on Windows, where this isn't needed

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, 9))  # sends nothing, but chooses the route
        except OSError:
            return None
        own = socket.inet_aton(sock.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if found[20:24] == own:
                return name
    return None


def connect(place: Place, timeout: timedelta) -> Store:
    """Connect to the other ranks at node 0's address and port; a single process connects to nothing."""
    try:
        if place.launched_by == TORCHRUN:  # its agent may hold the store already
            store: Store = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
            store.set_timeout(timeout)
            return store
        if place.world_size == 1:
            return HashStore()
        is_master, run = place.rank == 0, _run_of(place, os.environ)
        start = functools.partial(TCPStore, place.master_addr, place.master_port, place.world_size, is_master, timeout)
        first = start(wait_for_workers=False, multi_tenant=True)  # the second one shares its server
        if is_master:
            first.set("launch/run", run)
        else:
            check_run(first, place, run, min(timeout, timedelta(minutes=1)))
        return start(multi_tenant=True)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error) and place.rank == 0:
            taken = f"port {place.master_port} is taken on {socket.gethostname()}"
            raise WorldError(f"{taken}; fix: set MASTER_PORT to the same free port on all ranks") from None
        raise


def check_run(store: Store, place: Place, run: str, timeout: timedelta) -> None:
    """Raise WorldError if another job's rank 0 answers at the port: this rank would wait there for its own."""
    try:
        store.wait(["launch/run"], timeout)
        is_own = store.get("launch/run").decode() == run
    except dist.DistStoreError:
        is_own = False
    if not is_own:
        used = f"port {place.master_port} on {place.master_addr} is used by another job"
        raise WorldError(f"{used}; fix: unset MASTER_PORT, or set it to the same free port on all ranks")


def _run_of(place: Place, environ: Mapping[str, str]) -> str:
    """Return what the ranks of this run share and those of another one don't; MPICH gives its ranks no such thing."""
    if place.launched_by == SRUN:
        return f"{place.job_id}.{environ.get('SLURM_STEP_ID')}"
    return environ.get("PMIX_NAMESPACE", "")


def count_local_ranks(place: Place, store: Store, environ: Mapping[str, str]) -> Place:
    """Return the place with this host's ranks counted, if LOCAL_WORLD_SIZE was not set.

    Every rank whose variables were set by hand takes part, even one that has LOCAL_WORLD_SIZE: others may lack it.
    """
    if place.launched_by != TORCHRUN or environ.get(TORCHRUN_MARK):
        return place
    here = f"ranks/{host_name(environ)}"
    store.add(here, 1)
    if store.add("ranks", 1) == place.world_size:
        store.set("ranks/counted", "")
    store.wait(["ranks/counted"])
    if place.local_world_size:
        return place
    count = store.add(here, 0)
    os.environ["LOCAL_WORLD_SIZE"] = str(count)  # for `cpu_count`, and for other libraries
    _check_below(place, "local rank", place.local_rank, count)
    node_rank = place.node_rank or place.rank // count  # if ranks fill one host after another
    node_count = max(place.node_count, -(-place.world_size // count))
    return replace(place, local_world_size=count, node_rank=node_rank, node_count=node_count)


def overrule_variables(place: Place, store: Store) -> None:
    """Correct torchrun's variables where they contradict srun or mpirun: torch and other libraries read them too.

    Usually a batch script has exported them, the same for each rank. The first rank that gets here logs a warning.
    """
    wrong = _contradictions(place, os.environ)
    if not wrong or place.launched_by == TORCHRUN:
        return
    if store.add("overruled", 1) == 1:
        given = ", ".join(f"{name}={os.environ[name]}" for name in RANK_VARIABLES if os.environ.get(name))
        fix = "export MASTER_ADDR and MASTER_PORT only"
        log.warning("%s numbers the ranks, so these variables are ignored: %s; fix: %s", place.launched_by, given, fix)
    os.environ.update(wrong)


def refuse_shared_gpu(place: Place, store: Store, gpu: str) -> None:
    """Compare this rank's GPU with those of its host's other ranks, over the store, before NCCL fails on a duplicate.

    This is needed if fewer GPUs are visible than there are processes: either each rank was given its own
    (`--gpus-per-task=1`) or all were given the same one, and only the GPUs' UUIDs show which.
    """
    host = host_name(os.environ)
    store.set(f"gpu/{host}/{place.local_rank}", f"{place.rank} {gpu}")
    for local_rank in range(place.local_world_size):
        peer, _, peer_gpu = store.get(f"gpu/{host}/{local_rank}").decode().partition(" ")
        if int(peer) != place.rank and peer_gpu == gpu:
            raise DeviceError(
                f"ranks {min(int(peer), place.rank)} and {max(int(peer), place.rank)} share GPU {gpu}: "
                "NCCL would stop with 'Duplicate GPU detected'; fix: start one process per GPU"
            )


# ---- CPUs ----------------------------------------------------------------------------------------------------------


def limit_threads(place: Place, environ: Mapping[str, str]) -> None:
    """Limit torch's threads to this rank's share of the CPUs, since each rank would use all; rank 0 logs a warning.

    torchrun and `launch` set OMP_NUM_THREADS, but srun and mpirun don't. A lower number that is already set is kept.
    """
    if environ.get("OMP_NUM_THREADS"):
        return
    count = share_cpus(place, environ, count_usable_cpus())
    if torch.get_num_threads() <= count:
        return
    torch.set_num_threads(count)
    if place.rank == 0:
        threads = f"{count} thread{'' if count == 1 else 's'}"
        ranks = f"{place.local_world_size} rank{'' if place.local_world_size == 1 else 's'} on {host_name(environ)}"
        remedy = "set OMP_NUM_THREADS to change it"
        log.warning("torch uses %s on each rank, its share of the CPUs (%s); %s", threads, ranks, remedy)


def share_cpus(place: Place, environ: Mapping[str, str], usable: int) -> int:
    """Return this rank's share of the `usable` CPUs, those that the kernel lets this process run on; at least 1.

    A cluster may bind each srun task to its own CPUs, bind all tasks to those of the step, or bind none.
    """
    per_task = environ.get("SLURM_CPUS_PER_TASK", "")
    if place.launched_by == SRUN and per_task.isdecimal():
        return max(1, min(usable, int(per_task)))
    ranks = max(1, place.local_world_size)
    on_node = environ.get("SLURM_CPUS_ON_NODE", "") if environ.get("SLURMD_NODENAME") else ""
    if not on_node.isdecimal():
        return max(1, usable // ranks)
    if place.launched_by == SRUN:
        return max(1, min(usable, int(on_node) // ranks))
    return max(1, min(usable, int(on_node)) // ranks)


def count_usable_cpus() -> int:
    """Count the CPUs that this process may use at once: its affinity, or its control group's CPU quota if lower."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(max(1, min(allowed, find_cpu_quota())))


def find_cpu_quota(mounts: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups (`docker run --cpus`, a pod's limit) in CPUs, else inf.

    Each parent group may have a limit as well. In a container `own` may list paths of the host, which don't exist
    there; the container's own group is mounted instead (Documentation/admin-guide/cgroup-v2.rst).
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = mounts / "cpu" if controllers else mounts  # version 1 has one tree per controller
        for step in ("", *Path(path).parts[1:]):
            group = group / step
            quotas.append(_read_quota(group / "cpu.max"))
            quotas.append(_read_quota(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"))
    return min(quotas)


def _read_quota(*files: Path) -> float:
    """Return quota divided by period of one control group, or inf: no limit is `max`, -1 or no such file."""
    try:
        quota_us, period_us = " ".join(file.read_text() for file in files).split()
        return int(quota_us) / int(period_us) if int(quota_us) > 0 else math.inf
    except (OSError, ValueError):
        return math.inf


# ---- reading the environment -------------------------------------------------------------------------------------
# launcher/job/slurm_allocation.py reads some of the same; this file can be copied, so it shares no code with it.


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process, or its parent, as a task; an sbatch script belongs to no step."""
    step_id = environ.get("SLURM_STEP_ID", "")
    return step_id != "" and not (step_id.isdecimal() and int(step_id) >= FIRST_SPECIAL_STEP)


def _read_slurm_task(environ: Mapping[str, str]) -> Place | None:
    if not _is_slurm_task(environ):
        return None
    _require(environ, "this is a Slurm task", ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"))
    world_size = _whole_number(environ, "SLURM_STEP_NUM_TASKS", _whole_number(environ, "SLURM_NTASKS"))
    if environ.get("PMI_SIZE", str(world_size)) != str(world_size):
        return None  # MPICH's mpiexec starts its proxies with srun, and they start the ranks
    node_rank = _whole_number(environ, "SLURM_NODEID", 0)
    nodes = _first_of(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    peers = tuple(expand_nodes(nodes)) if nodes else ()
    if world_size > 1 and not peers and not environ.get("MASTER_ADDR"):
        raise WorldError(
            "this is a Slurm task, but SLURM_JOB_NODELIST is not set; fix: start it with srun, or set MASTER_ADDR"
        )
    tasks = _first_of(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    counts = expand_counts(tasks) if tasks else [_whole_number(environ, "SLURM_NTASKS_PER_NODE", world_size)]
    job_id, step_id = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
    return Place(
        launched_by=SRUN,
        rank=_whole_number(environ, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_whole_number(environ, "SLURM_LOCALID"),
        local_world_size=counts[min(node_rank, len(counts) - 1)],
        node_rank=node_rank,
        node_count=_whole_number(environ, "SLURM_STEP_NUM_NODES", max(1, len(peers))),
        master_addr=environ.get("MASTER_ADDR") or (peers[0] if peers else "127.0.0.1"),
        master_port=_whole_number(environ, "MASTER_PORT", _port_of(f"{job_id}.{step_id}")),
        job_id=job_id,
        peers=peers,
    )


def _are_inherited(names: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Return whether the task's first process has these variables and values, as if a batch script exported them.

    /proc/PID/environ keeps that process's environment as of its last exec, so what a wrapper sets before it starts the
    training with `exec` looks exported too. What it sets for a child process doesn't.
    """
    words = {os.fsencode(f"{name}={environ[name]}") for name in names}
    if not words:
        return True
    try:
        return words <= set(Path(f"/proc/{environ.get('SLURM_TASK_PID')}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def _contradictions(place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the torchrun variables that contradict the place, each with the place's value."""
    values = (place.rank, place.world_size, place.local_rank, place.local_world_size)
    told = {name: str(values[number]) for number, name in enumerate(RANK_VARIABLES)}
    return {name: value for name, value in told.items() if environ.get(name) not in (None, "", value)}


def _place_of_variables(environ: Mapping[str, str]) -> Place:
    return Place(
        launched_by=TORCHRUN,
        rank=_whole_number(environ, "RANK"),
        world_size=_whole_number(environ, "WORLD_SIZE"),
        local_rank=_whole_number(environ, "LOCAL_RANK"),
        local_world_size=_whole_number(environ, "LOCAL_WORLD_SIZE", 0),
        node_rank=_whole_number(environ, "GROUP_RANK", 0),
        node_count=_whole_number(environ, "GROUP_WORLD_SIZE", 1),
        master_addr=environ["MASTER_ADDR"],
        master_port=_whole_number(environ, "MASTER_PORT"),
        job_id=environ.get("SLURM_JOB_ID"),
    )


def _place_of_mpi(launched_by: str, environ: Mapping[str, str], names: list[str], port: int) -> Place:
    """Read rank, size, local rank and local size from the variables with these `names`."""
    _require(environ, f"{launched_by} started this rank", names)
    rank, world_size, local_rank, local_world_size = (_whole_number(environ, name) for name in names)
    if local_world_size < 1:
        raise WorldError(f"{names[-1]} must be at least 1, got {local_world_size}")
    if world_size > local_world_size and not environ.get("MASTER_ADDR"):
        raise WorldError(
            f"{launched_by} used several hosts, but MASTER_ADDR is not set; fix: set it to rank 0's host on all ranks"
        )
    return Place(
        launched_by=launched_by,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,  # if ranks fill one host after another, as they usually do
        node_count=-(-world_size // local_world_size),
        master_addr=environ.get("MASTER_ADDR") or "127.0.0.1",
        master_port=_whole_number(environ, "MASTER_PORT", port),
        job_id=environ.get("SLURM_JOB_ID"),
    )


def _check_below(place: Place, name: str, rank: int, size: int) -> None:
    if rank >= size:
        raise WorldError(f"{place.launched_by} says {name} {rank} of {size}: it must be below {size}")


def _require(environ: Mapping[str, str], what: str, names: Sequence[str]) -> None:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise WorldError(f"{what}, but {_listed(missing)} not set")


def _first_of(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _expand(element: str) -> list[str]:
    head, bracket, rest = element.partition("[")
    if not bracket:
        return [head]
    ranges, _, tail = rest.partition("]")
    return [f"{head}{number}{end}" for number in _numbers(ranges) for end in _expand(tail)]


def _numbers(ranges: str) -> Iterator[str]:
    """Yield `1`, `2`, `3`, `007` for `1-3,007`: leading zeros are part of a name."""
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise WorldError(f"can't read the range of nodes {part!r}")
        yield from (f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1))


def _means_loopback(host: str) -> bool:
    """Return whether this is a loopback address on every machine; a machine's own name may be one on itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.partition(".")[0] in ("localhost", "ip6-localhost", "ip6-loopback")


def _is_own(host: str) -> bool:
    """Return whether one of the addresses of `host` is this machine's: only those can be bound."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: Any) -> bool:
    """Return whether an address can be bound, or can't be tried."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _is_loopback(host: str) -> bool:
    """Return whether a name resolves to this machine's loopback address, or to nothing."""
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return True


def _port_of(text: str) -> int:
    """Return a port that all ranks of a job compute alike, and that two jobs on one node are unlikely to share."""
    return FIRST_PORT + zlib.crc32(text.encode()) % PORT_COUNT


def _describe_device(device: torch.device) -> str:
    """Return `cpu`, or `cuda:1 GPU-1f2e..., 80 GB` with nvidia-smi's UUID: another process may call that GPU cuda:0."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", "")
    return f"{device}{f' GPU-{uuid}' if uuid else ''}, {properties.total_memory / 2**30:.0f} GB"


def _rank_and_size() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _listed(names: list[str]) -> str:
    """Return `A is`, or `A, B are`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _whole_number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name) or ("" if default is None else str(default))
    if not text.isdecimal():
        raise WorldError(f"{name} must be a whole number, got {text!r}")
    return int(text)
