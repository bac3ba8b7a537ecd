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
import os
import re
import socket
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

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
OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
STARTERS = (
    (MPIRUN, OPEN_MPI[0], OPEN_MPI),
    (SRUN, "SLURM_STEP_ID", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")),  # the ranks count the last
    (MPIEXEC, "PMI_LOCAL_RANK", ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")),  # Cray's
    (MPIEXEC, "PMI_RANK", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),  # MPICH's and Intel's
)
# Steps that are a shell and no task: Slurm counts these down from 0xffffffff (slurm.h, SLURM_BATCH_SCRIPT and on).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
BACKENDS = ("auto", "nccl", "gloo")
# Ports that no service is registered for, below those that the kernel hands out (32768 on).
FIRST_PORT, PORT_COUNT = 15_000, 15_000
TORCH_PORT = 29_500
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
    for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"):  # a script of sbatch without srun, or a shell of salloc
        if world.launched_by == SINGLE_PROCESS and os.environ.get(name, "1") not in ("", "1"):
            log.warning("only one process trains, but %s is %s; fix: start it with srun", name, os.environ[name])
    chosen = choose_backend(backend, os.environ)
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


def all_reduce_mean(value: Number) -> Number:
    """Return the mean of `value` over the ranks: a number for a number, a tensor of any shape for a tensor.

    A tensor is left as it is, and a new one returned; it must be floating-point and on this rank's device.
    """
    if not isinstance(value, torch.Tensor):
        on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
        return float(all_reduce_mean(torch.tensor(value, dtype=torch.float64, device="cuda" if on_gpu else "cpu")))
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
        raise WorldError(f"set: {', '.join(present)}; not set: {', '.join(missing)}; {remedy}")
    return World(job_id=environ.get("SLURM_JOB_ID"), host=host_name(environ))


def read_place(environ: Mapping[str, str], launched_by: str, names: Sequence[str]) -> World:
    """Read the variables of rank, size, local rank and, unless its name is "", local size.

    Under srun, rank 0 is on the first node of the step, unless MASTER_ADDR is set.
    """
    if missing := [name for name in names if name and not environ.get(name)]:
        raise WorldError(f"{launched_by} started this rank, but didn't set {', '.join(missing)}")
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


def _number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal():
        raise WorldError(f"{name} must be a whole number, got {text!r}")
    return int(text)


# ---- whether that place is possible: if not, the ranks would wait for each other until the timeout -------------------


def check_place(world: World) -> None:
    """Raise WorldError for numbers that can't be, or a host of rank 0 that can't be reached."""
    ranks = [("rank", world.rank, world.world_size), ("local rank", world.local_rank, world.local_world_size)]
    for name, rank, size in ranks if world.local_world_size else ranks[:1]:
        if rank >= size:
            raise WorldError(f"{world.launched_by} says {name} {rank} of {size}: it must be below {size}")
    # Such an address is each node's own. With torchrun's variables it may be a port that is forwarded to rank 0.
    is_own = re.match(r"127\.|::1$|localhost|ip6-l", world.master_addr)
    if is_own and world.node_count > 1 and world.launched_by != TORCHRUN:
        fix = "unset MASTER_ADDR" if world.launched_by == SRUN else "set MASTER_ADDR to the host of rank 0 on all ranks"
        raise WorldError(f"rank 0 can't be reached at {world.master_addr} from {world.node_count} nodes; fix: {fix}")
    if world.world_size > 1:
        try:
            socket.getaddrinfo(world.master_addr, None)
        except OSError:
            fix = "set MASTER_ADDR to an address of that host on all ranks"
            raise WorldError(f"can't resolve {world.master_addr}, the host of rank 0; fix: {fix}") from None


# ---- backend and device ----------------------------------------------------------------------------------------------


def choose_backend(backend: str, environ: Mapping[str, str]) -> str:
    """Resolve `auto`, and refuse a backend that this host can't run, or `auto` if it has GPUs that CUDA can't use."""
    if backend not in BACKENDS:
        raise WorldError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "gloo" or torch.cuda.is_available():
        return "nccl" if backend == "auto" else backend
    gpus = [path for path in DEVICES.glob("nvidia[0-9]*") if os.access(path, os.R_OK)]  # a job may have no right to it
    # An empty CUDA_VISIBLE_DEVICES, or one whose first entry names no GPU, such as -1, hides all of them.
    if torch.version.cuda and gpus and re.match(r"\s*\+?\d|GPU-|MIG-", environ.get("CUDA_VISIBLE_DEVICES", "0")):
        fault = "it sees none of them"
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  # its type depends on the cause and on the version
            fault = str(error).strip().partition("\n")[0]
        has = f"{host_name(environ)} has GPUs, but torch {torch.__version__} can't use them: {fault}"
        raise WorldError(f"{has}; fix: repair the driver, or use backend gloo to train on the CPU")
    if backend == "nccl":
        raise WorldError("backend nccl needs a GPU, but torch sees none here; fix: use gloo to run on the CPU")
    return "gloo"


def choose_device(world: World, backend: str, device_count: int) -> torch.device:
    """Give each local rank its own GPU; if only one is visible, it is `cuda:0` whatever the local rank."""
    if backend != "nccl":
        return CPU
    if device_count > 1 and world.local_rank >= device_count:
        has = f"local rank {world.local_rank} has no GPU of its own: torch sees {device_count} on {world.host}"
        raise WorldError(f"{has}; fix: start one process per GPU")
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

    Raise WorldError on every rank if they use different backends, in which they would wait for each other. Correct
    torchrun's variables where they contradict srun or mpirun, since torch and other libraries read them too: usually a
    batch script has exported them, the same for each rank.
    """
    turn = store.add(f"turns of {world.rank}", 1)  # a process may call `init` again
    keys = [f"{turn} {rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], json.dumps([world.host, world.backend]))
    ranks = [json.loads(said) for said in store.multi_get(keys)]
    uses: dict[str, str] = {}
    for rank, (host, backend) in enumerate(ranks):
        uses.setdefault(backend, f"rank {rank} on {host} uses {backend}")
    if len(uses) > 1:
        if store.add(f"{turn} heard", 1) == world.world_size:
            store.set(f"{turn} ended", "")
        if world.is_main:  # the last to fail, because its process may hold the store
            store.wait([f"{turn} ended"])
        fix = "let torch see a GPU for every rank, or choose gloo for all of them"
        raise WorldError(f"{', but '.join(uses.values())}; fix: {fix}")
    if not world.local_world_size:
        hosts = [host for host, _ in ranks]
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
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = share_cpus(world, environ, usable)
    if not environ.get("OMP_NUM_THREADS") and torch.get_num_threads() > count:
        torch.set_num_threads(count)
        if world.is_main:
            text = "torch's threads on each rank, its share of the CPUs: %d; set OMP_NUM_THREADS to change it"
            log.warning(text, count)


def share_cpus(world: World, environ: Mapping[str, str], usable: int) -> int:
    """Return this rank's share of the `usable` CPUs, those that the kernel lets this process run on; at least 1.

    A cluster may bind each srun task to its own CPUs, bind all tasks to those of the step, or bind none.
    """
    per_task, on_node = (_number(environ, f"SLURM_CPUS_{name}") for name in ("PER_TASK", "ON_NODE"))
    if world.launched_by == SRUN and (per_task or on_node):
        return max(1, min(usable, per_task or on_node // world.local_world_size))
    return max(1, min(usable, on_node or usable) // world.local_world_size)
