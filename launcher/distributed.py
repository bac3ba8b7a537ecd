"""Find out where this process runs, and join the ranks of the run into one process group.

A training script needs three lines and then runs unchanged under torchrun, `srun`, `mpirun` and as a single process:

    world = distributed.init()            # rank, world size, device
    model = Model().to(world.device)
    distributed.shutdown()

`shutdown()` leaves the process group; Python then exits as usual. With gloo that exit has been seen to abort with
SIGABRT, in gloo's threads, and to hang while a DDP model is freed (torch 2.13). On CPUs, call `distributed.leave(0)`
after `shutdown()`, before the function with the model returns, as `examples/train_distributed_example.py` does.

This file needs only torch and the standard library of Python 3.8, so you can copy it into another project.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in torch's stubs
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

SINGLE_PROCESS, TORCHRUN, SRUN, MPIRUN, MPIEXEC = "single process", "torchrun", "srun", "mpirun", "mpiexec"
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
TORCHRUN_VARIABLES = (*RANK_VARIABLES, "MASTER_ADDR", "MASTER_PORT")
TORCHRUN_MARK = "TORCHELASTIC_RUN_ID"  # only torchrun and `launch` set this variable
# What starts ranks, the innermost first: the variable that shows it; those of rank, size, local rank and local size.
STARTERS = (
    (
        MPIRUN,
        "OMPI_COMM_WORLD_RANK",
        tuple(f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ),
    (SRUN, "SLURM_STEP_ID", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")),  # the ranks count the last
    (MPIEXEC, "PMI_LOCAL_RANK", ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")),  # Cray's
    (MPIEXEC, "PMI_RANK", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),  # MPICH's and Intel's
)
# Steps that are a shell and no task: Slurm counts these down from 0xffffffff (slurm.h, SLURM_BATCH_SCRIPT and on).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
BACKENDS = ("auto", "nccl", "gloo")
# Ports that no service is registered for, below those that the kernel hands out (32768 on).
FIRST_PORT, PORT_COUNT = 15_000, 15_000
TORCH_PORT, MAX_PORT = 29_500, 65_535
DEVICES = Path("/dev")
CPU = torch.device("cpu")
SIOCGIFADDR = 0x8915  # linux/sockios.h

log = logging.getLogger(__name__)
Number = TypeVar("Number", float, torch.Tensor)


class WorldError(RuntimeError):
    """The environment, the caller or the devices don't allow this set of ranks."""


@dataclass(frozen=True)
class World:
    """All that a training script needs to know about its place among the ranks."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1  # 0: not set, so the ranks count themselves in `meet`
    device: torch.device = CPU
    backend: str = "gloo"
    launched_by: str = SINGLE_PROCESS
    node_rank: int = 0
    node_count: int = 1
    host: str = ""
    job_id: str | None = None
    timeout_s: float = 600  # the time limit of the collectives
    master_addr: str = "127.0.0.1"
    master_port: int = TORCH_PORT
    run: str = ""  # what the ranks of this run share and those of another don't
    peers: tuple[str, ...] = ()  # the names of the first and the last node, if the environment lists them

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, the one that prints and saves."""
        return self.rank == 0

    def __str__(self) -> str:
        """Describe this rank in one line: `rank 3 of 8 (srun) on gpu2, local rank 1 of 4, cuda:1, nccl`."""
        local = f", local rank {self.local_rank} of {self.local_world_size}" if self.world_size > 1 else ""
        where = f"rank {self.rank} of {self.world_size} ({self.launched_by}) on {self.host}"
        return f"{where}{local}, {self.device}, {self.backend}"


# ---- joining and leaving ---------------------------------------------------------------------------------------------


def init(backend: str = "auto", timeout_s: float = 600) -> World:
    """Choose backend and device, join the process group, and return this process's world.

    `auto` is nccl if torch sees a GPU, else gloo; gloo runs on the CPU.
    Raise WorldError if the ranks can't work together, or CUDA can't use this host's GPUs.
    `timeout_s` bounds the wait for the other ranks, here and in every collective.
    Torch uses no more threads than this rank's share of the CPUs, unless OMP_NUM_THREADS is set.
    A single process gets a group of one, without a port, so that collectives need no special case.
    """
    world = replace(find_place(os.environ), timeout_s=timeout_s)
    check_place(world)
    check_address(world, os.environ)
    warn_of_idle_tasks(world, os.environ)
    chosen = choose_backend(backend, os.environ)
    if chosen == "gloo" and backend == "auto":
        warn_of_idle_gpus(world, os.environ)
    device = choose_device(world, chosen, torch.cuda.device_count() if chosen == "nccl" else 0)
    world = replace(world, backend=chosen, device=device)
    store = connect(world)
    world = meet(world, store)
    bind_gloo(world)
    limit_threads(world, os.environ)
    if device.type == "cuda":
        if torch.__version__.partition("+")[0] == "2.7.0":
            # It makes the NCCL of a group with a device non-blocking, which hangs now and then (pytorch#153960).
            os.environ.setdefault("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
        torch.cuda.set_device(device)
    dist.init_process_group(
        chosen,
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=timeout_s),
        # NCCL then connects here and not in the first collective, and barrier() knows its device.
        device_id=device if device.type == "cuda" else None,
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


def barrier() -> None:
    """Wait until every rank has called this."""
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def rank_ordered() -> Iterator[None]:
    """Run the block on one rank after another, from rank 0; every rank must call this. An error passes the turn on."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for _ in range(rank):
        barrier()
    try:
        yield
    finally:
        for _ in range(world_size - rank):
            barrier()


def all_reduce_mean(value: Number) -> Number:
    """Return the mean of `value` over the ranks: a number for a number, a tensor of any shape for a tensor.

    A tensor is left as it is, and a new one returned; it must be floating-point and on this rank's device.
    """
    if not isinstance(value, torch.Tensor):
        on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
        total = torch.tensor(float(value), dtype=torch.float64, device="cuda" if on_gpu else "cpu")
        return float(all_reduce_mean(total).item())
    if not value.is_floating_point():
        raise TypeError(f"a mean needs a floating-point tensor, got {value.dtype}")
    total = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return total


# ---- this process's place among the ranks, as the environment gives it -----------------------------------------------


def find_place(environ: Mapping[str, str]) -> World:
    """Return the place among the ranks that whatever started this process has given it.

    torchrun's variables count if torchrun or `launch` has left its mark. Other programs and users set them too: a batch
    script exports them, the same for each task, so those of srun and mpirun win over them (see `meet`). Only if they
    number more ranks than that, something in a task has set them for ranks of its own.
    """
    missing = [name for name in TORCHRUN_VARIABLES if not environ.get(name)]
    told = None if missing else read_place(environ, TORCHRUN, RANK_VARIABLES)
    if told is not None and environ.get(TORCHRUN_MARK):
        return told
    for launched_by, mark, names in STARTERS:
        if environ.get(mark) and (launched_by != SRUN or _is_slurm_task(environ)):
            place = read_place(environ, launched_by, names)
            return told if told is not None and told.world_size > place.world_size else place
    # Torch doesn't need LOCAL_WORLD_SIZE. In a Slurm job, such a rank would wait for tasks that never start.
    if not missing or (missing == ["LOCAL_WORLD_SIZE"] and not environ.get("SLURM_JOB_ID")):
        return told or read_place(environ, TORCHRUN, (*RANK_VARIABLES[:3], ""))
    if present := [name for name in TORCHRUN_VARIABLES if name not in missing]:
        starter = "srun or torchrun" if environ.get("SLURM_JOB_ID") else "torchrun"
        remedy = f"fix: start with {starter}, or unset them for a single process"
        raise WorldError(f"{_listed(present)} set but {_listed(missing)} not; {remedy}")
    return World(job_id=environ.get("SLURM_JOB_ID"), host=host_name(environ))


def read_place(environ: Mapping[str, str], launched_by: str, names: Sequence[str]) -> World:
    """Read the variables of rank, size, local rank and, unless its name is "", local size.

    Under srun, rank 0 is on the first node of the step, unless MASTER_ADDR is set.
    """
    if missing := [name for name in names if name and not environ.get(name)]:
        raise WorldError(f"{launched_by} started this rank, but {_listed(missing)} not set")
    rank, world_size, local_rank, local_world_size = (_number(environ, name) for name in names)
    job_id = environ.get("SLURM_JOB_ID")
    # Each run of Open MPI's mpirun has a namespace of its own; MPICH gives its ranks no such thing.
    run, peers = environ.get("PMIX_NAMESPACE", ""), ("127.0.0.1", "127.0.0.1")
    node_rank, node_count = rank // max(1, local_world_size), -(-world_size // max(1, local_world_size))
    if launched_by == SRUN:
        run, peers = f"{job_id}.{environ['SLURM_STEP_ID']}", find_ends(environ.get("SLURM_STEP_NODELIST", "localhost"))
        node_rank, node_count = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_STEP_NUM_NODES", 1)
    elif launched_by == TORCHRUN:
        node_rank, node_count = _number(environ, "GROUP_RANK"), _number(environ, "GROUP_WORLD_SIZE", 1)
    return World(
        rank,
        world_size,
        local_rank,
        local_world_size,
        launched_by=launched_by,
        node_rank=node_rank,
        node_count=node_count,
        host=host_name(environ),
        job_id=job_id,
        master_addr=environ.get("MASTER_ADDR") or peers[0],
        # Two jobs on one node are unlikely to share a port that is computed from what their ranks have in common.
        master_port=_number(environ, "MASTER_PORT", FIRST_PORT + zlib.crc32(run.encode()) % PORT_COUNT),
        run=run,
        peers=peers,
    )


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process as a rank; a script of sbatch and a shell of salloc are none."""
    step, size = environ["SLURM_STEP_ID"], environ.get("SLURM_STEP_NUM_TASKS")
    is_special = step.isdecimal() and int(step) >= FIRST_SPECIAL_STEP
    return not is_special and environ.get("PMI_SIZE") in (None, size)  # MPICH's mpiexec starts its proxies with srun


def find_ends(nodes: str) -> tuple[str, str]:
    """Return the first and the last name in Slurm's `gpu[1-3,007-010],a[1-2]b`: gpu1 and a2b."""
    elements = re.findall(r"(?:[^][,]|\[[^]]*\])+", nodes)
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", elements[0]), re.sub(r"\[[^]]*?(\d+)\]", r"\1", elements[-1])


def host_name(environ: Mapping[str, str]) -> str:
    """Return this node's name: Slurm's name for it under Slurm, else the host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def _listed(names: Sequence[str]) -> str:
    """Return `A is`, or `A, B are`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise WorldError(f"{name} must be a whole number, got {text!r}")
    return int(text)


# ---- whether that place is possible: if not, the ranks would wait for each other until the timeout -------------------


def check_place(world: World) -> None:
    """Raise WorldError for numbers that can't be, or a host of rank 0 that this one doesn't know."""
    ranks = [("rank", world.rank, world.world_size), ("local rank", world.local_rank, world.local_world_size)]
    for name, rank, size in ranks if world.local_world_size else ranks[:1]:
        if rank >= size:
            raise WorldError(f"{world.launched_by} says {name} {rank} of {size}: it must be below {size}")
    if not 1 <= world.master_port <= MAX_PORT:
        raise WorldError(f"MASTER_PORT must be between 1 and {MAX_PORT}, got {world.master_port}")
    if world.world_size > 1:
        try:
            socket.getaddrinfo(world.master_addr, None)
        except OSError:
            fix = "set MASTER_ADDR to an address of that host on all ranks"
            raise WorldError(f"can't resolve {world.master_addr}, the host of rank 0; fix: {fix}") from None


def check_address(world: World, environ: Mapping[str, str]) -> None:
    """Raise WorldError if rank 0 can't be reached at MASTER_ADDR.

    Every rank can tell that a loopback address is wrong for several nodes; only rank 0 can tell that the address is
    another node's. torchrun's variables aren't checked: there the address may be a forwarded port's.
    """
    if world.world_size == 1 or world.launched_by == TORCHRUN:
        return
    address, is_set, what = world.master_addr, bool(environ.get("MASTER_ADDR")), ""
    given = f"MASTER_ADDR is {environ.get('MASTER_ADDR') or 'not set'}"
    fix = "set MASTER_ADDR to the host of rank 0 on all ranks"
    if world.launched_by == SRUN:
        given, fix = (given, "unset MASTER_ADDR") if is_set else (f"the first node is {address}", fix)
    # A machine's own name may be a loopback address on itself alone.
    if world.node_count > 1 and re.match(r"127\.|::1$|localhost|ip6-l", address):
        what = f"the ranks are on {world.node_count} nodes"
    elif world.is_main and address not in (world.host, socket.gethostname()) and not _is_own(address):
        what = f"rank 0 is on {world.host}"
    if what:
        raise WorldError(f"{given}, but {what}; fix: {fix}")


def _is_own(host: str) -> bool:
    """Return whether one of the addresses of `host` is this machine's: only those can be bound."""
    for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)
            return True
    return False


def warn_of_idle_tasks(world: World, environ: Mapping[str, str]) -> None:
    """Warn if an sbatch script, or a shell of salloc, trains with one process although its job has more tasks or nodes.

    SLURM_NTASKS is set only if a number of tasks was requested; SLURM_TASKS_PER_NODE may then be the number of CPUs.
    """
    sizes = {"tasks": environ.get("SLURM_NTASKS"), "nodes": environ.get("SLURM_JOB_NUM_NODES")}
    more = [f"{size} {name}" for name, size in sizes.items() if size not in (None, "", "1")]
    if world.launched_by == SINGLE_PROCESS and more:
        log.warning("only one process trains, but this Slurm job has %s; fix: start it with srun", more[0])


def warn_of_idle_gpus(world: World, environ: Mapping[str, str]) -> None:
    """Warn once per node if Slurm allocated GPUs but torch is about to train without them."""
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if count not in ("", "0") and world.local_rank == 0 and not hides_gpus(environ):
        text = "Slurm gave GPUs (%s) on %s, but torch %s sees none: using the CPU"
        log.warning(text, count, world.host, torch.__version__)


# ---- backend and device ----------------------------------------------------------------------------------------------


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
        raise WorldError(f"{has}; fix: {test}; to train on the CPU, use backend gloo")
    if backend == "nccl":
        raise WorldError("backend nccl needs a GPU, but torch sees none here; fix: use gloo to run on the CPU")
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


def choose_device(world: World, backend: str, device_count: int) -> torch.device:
    """Give each local rank its own GPU; if only one is visible, it is `cuda:0` whatever the local rank."""
    if backend != "nccl":
        return CPU
    if device_count > 1 and world.local_rank >= device_count:
        raise WorldError(
            f"local rank {world.local_rank} has no GPU of its own: torch sees {device_count} on {world.host}, "
            "and NCCL would stop with 'Duplicate GPU detected'; fix: start one process per GPU"
        )
    return torch.device("cuda", 0 if device_count == 1 else world.local_rank)


# ---- the ranks meet --------------------------------------------------------------------------------------------------


def connect(world: World) -> Store:
    """Connect to the store in the process of rank 0; a single process connects to nothing."""
    timeout = timedelta(seconds=world.timeout_s)
    try:
        if world.launched_by == TORCHRUN:  # its agent may hold the store already
            store: Store = next(rendezvous("env://", world.rank, world.world_size, timeout=timeout))[0]
            store.set_timeout(timeout)
            return store
        if world.world_size == 1:
            return HashStore()
        address = world.master_addr, world.master_port
        tcp_store = TCPStore(*address, None, world.is_main, timeout, wait_for_workers=False)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error) and world.is_main:
            taken = f"port {world.master_port} is taken on {socket.gethostname()}"
            raise WorldError(f"{taken}; fix: set MASTER_PORT to the same free port on all ranks") from None
        raise
    store = PrefixStore(f"launch/{world.run}", tcp_store)  # another job's rank 0 may hold the port
    if world.is_main:
        store.set("open", "")
        return store
    try:
        store.wait(["open"], min(timeout, timedelta(minutes=1)))
    except dist.DistStoreError:
        used = f"port {world.master_port} on {world.master_addr} is used by another job"
        raise WorldError(f"{used}; fix: unset MASTER_PORT, or set it to the same free port on all ranks") from None
    return store


def meet(world: World, store: Store) -> World:
    """Tell the other ranks about this one, and return the world with this host's ranks counted if nobody told.

    Raise WorldError on every rank if they use different backends, in which they would wait for each other, or if two
    use the same GPU. Correct torchrun's variables where they contradict srun or mpirun, since torch and other libraries
    read them too: usually a batch script has exported them, the same for each rank.
    """
    turn = store.add(f"turns of {world.rank}", 1)  # a process may call `init` again
    keys = [f"{turn} {rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], json.dumps([world.host, world.backend, find_gpu(world)]))
    ranks = [json.loads(said) for said in store.multi_get(keys)]
    if problem := find_conflict(ranks):
        if store.add(f"{turn} heard", 1) == world.world_size:
            store.set(f"{turn} ended", "")
        if world.is_main:  # the last to fail, because its process may hold the store
            store.wait([f"{turn} ended"])
        raise WorldError(problem)
    if not world.local_world_size:
        hosts = [host for host, _, _ in ranks]
        names = list(dict.fromkeys(hosts))
        each, node_rank = hosts.count(world.host), names.index(world.host)
        world = replace(world, local_world_size=each, node_rank=node_rank, node_count=len(names))
        check_place(world)
    numbers = (world.rank, world.world_size, world.local_rank, world.local_world_size)
    told = {name: str(numbers[place]) for place, name in enumerate(RANK_VARIABLES)}
    given = {name: os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)}
    if world.launched_by == TORCHRUN:
        os.environ["LOCAL_WORLD_SIZE"] = told["LOCAL_WORLD_SIZE"]
    elif not given.items() <= told.items():
        os.environ.update(told)
        if store.add(f"{turn} corrected", 1) == 1:
            ignored = ", ".join(f"{name}={value}" for name, value in given.items())
            text = (
                "%s numbers the ranks, so these variables are ignored: %s; fix: export MASTER_ADDR and MASTER_PORT only"
            )
            log.warning(text, world.launched_by, ignored)
    return world


def find_gpu(world: World) -> str:
    """Return the UUID of this rank's GPU, if each rank may have been given its own, or all the same one."""
    count = torch.cuda.device_count() if world.device.type == "cuda" else 0
    if not count or 0 < world.local_world_size <= count:
        return ""
    return str(getattr(torch.cuda.get_device_properties(world.device), "uuid", ""))


def find_conflict(ranks: Sequence[Sequence[Any]]) -> str:
    """Return why these ranks can't work together, each with host, backend and the UUID of its GPU; "" if they can."""
    backends: dict[str, str] = {}
    gpus: dict[str, int] = {}
    for rank, (host, backend, gpu) in enumerate(ranks):
        backends.setdefault(backend, f"rank {rank} on {host} uses {backend}")
        first = gpus.setdefault(gpu, rank) if gpu else rank
        if first != rank:
            return (
                f"ranks {first} and {rank} share GPU {gpu}: NCCL would stop with 'Duplicate GPU detected'; "
                "fix: start one process per GPU"
            )
    if len(backends) == 1:
        return ""
    return (
        f"{', but '.join(backends.values())}; fix: let torch see a GPU for every rank, or choose gloo for all of them"
    )


# ---- network and CPUs ------------------------------------------------------------------------------------------------


def bind_gloo(world: World) -> None:
    """Set gloo's interface if this host's name resolves to a loopback address, as on Debian through /etc/hosts.

    gloo would otherwise give that address to the other nodes, and all would wait for each other.
    """
    if world.node_count == 1 or os.environ.get("GLOO_SOCKET_IFNAME") or not _is_loopback(socket.gethostname()):
        return
    for peer in (*world.peers, world.master_addr):
        if not _is_loopback(peer) and (name := interface_towards(peer)) is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
            return


def _is_loopback(host: str) -> bool:
    """Return whether a name resolves to this machine's loopback address, or to nothing."""
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return True


def interface_towards(host: str) -> str | None:
    """Return the name of the network interface that packets to `host` leave through; IPv4 only."""
    import fcntl  # not available on Windows, where this isn't needed

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))  # sends nothing, but chooses the route
        own = socket.inet_aton(sock.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                if fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == own:
                    return name
    return None


def limit_threads(world: World, environ: Mapping[str, str]) -> None:
    """Limit torch's threads to this rank's share of the CPUs, since each rank would use all; rank 0 logs a warning.

    torchrun and `launch` set OMP_NUM_THREADS, but srun and mpirun don't. A lower number that is already set is kept.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = share_cpus(world, environ, int(min(allowed, find_cpu_quota())))
    if environ.get("OMP_NUM_THREADS") or torch.get_num_threads() <= count:
        return
    torch.set_num_threads(count)
    if world.is_main:
        threads = f"{count} thread{'' if count == 1 else 's'}"
        ranks = f"{world.local_world_size} rank{'' if world.local_world_size == 1 else 's'} on {world.host}"
        remedy = "set OMP_NUM_THREADS to change it"
        log.warning("torch uses %s on each rank, its share of the CPUs (%s); %s", threads, ranks, remedy)


def share_cpus(world: World, environ: Mapping[str, str], usable: int) -> int:
    """Return this rank's share of the `usable` CPUs, those that the kernel lets this process run on; at least 1.

    A cluster may bind each srun task to its own CPUs, bind all tasks to those of the step, or bind none.
    """
    per_task, on_node = (_number(environ, f"SLURM_CPUS_{name}") for name in ("PER_TASK", "ON_NODE"))
    if world.launched_by == SRUN and (per_task or on_node):
        return max(1, min(usable, per_task or on_node // world.local_world_size))
    return max(1, min(usable, on_node or usable) // world.local_world_size)


def find_cpu_quota(mounts: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups (`docker run --cpus`, a pod's limit) in CPUs, else inf.

    Each parent group may have a limit as well. In a container `own` may list paths of the host, which don't exist
    there; the container's own group is mounted instead (Documentation/admin-guide/cgroup-v2.rst).
    """
    quotas = [math.inf]
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        group = mounts / "cpu" if controllers else mounts  # version 1 has one tree per controller
        for step in ("", *Path(path).parts[1:]) if not controllers or "cpu" in controllers.split(",") else ():
            group = group / step
            for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                with suppress(OSError, ValueError):  # no such file, or `max`
                    quota_us, period_us = map(int, " ".join((group / name).read_text() for name in names).split())
                    quotas += [quota_us / period_us] if quota_us > 0 else []
    return min(quotas)
