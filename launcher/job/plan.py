"""Compute the exact argv and environment of every node. Pure: no process, socket or clock."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.activation import quote_path, setup_by_hand
from launcher.job.facts import Gpu, NodeFacts, Route
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.variables import shell_assignments
from launcher.node import messages

ARCHIVE_NAME = "launcher.pyz"
TORCHRUN = ("-m", "torch.distributed.run")

FLIGHT_RECORDER_PREFIX = "nccl_trace_rank_"  # of its files' names; the rank follows
# How torch before 2.8 spells them (c10d/FlightRecorder.hpp and .cpp); later ones warn of these names on every rank.
_OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank that the shim starts, where no torchrun is needed."""

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node will start."""

    host: Host
    node_rank: int
    first_rank: int
    nproc: int
    cwd: str
    env: Mapping[str, str]  # on top of the node's own environment and the job's
    argv: tuple[str, ...] = ()  # torchrun, or empty where `processes` are started
    processes: tuple[RankProcess, ...] = ()
    by_hand: str = ""  # the same as a shell command line to run on that node
    gpus: tuple[int, ...] = ()  # that the run uses: one per local rank, then those that were chosen beyond that
    python_path: str | None = None  # of the ranks; None: as it is there

    def gpu_of(self, local_rank: int) -> int | None:
        """Return the GPU that a local rank is meant to use."""
        return self.gpus[local_rank] if local_rank < min(self.nproc, len(self.gpus)) else None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What will be started on all nodes: complete and printable."""

    program: Program
    nodes: tuple[NodePlan, ...]  # those that are started here: all, or one share of a run by hand
    nnodes: int
    world_size: int
    master_addr: str
    master_port: int | str  # a named placeholder in a dry run


def build_plan(
    job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts], share: tuple[int, int] | None = None
) -> LaunchPlan:
    """Return the plan; `facts` must have passed `preflight.checks.find_problems`.

    share: (number of nodes, rank of the only host here), if each node is started by hand, all with equal sizes.
    """
    sizes = [count_processes(job, host, fact) for host, fact in zip(hosts, facts, strict=True)]
    sizes = sizes if share is None else sizes * share[0]
    first = 0 if share is None else share[1]
    master = job.master_addr or master_address(hosts[0], facts, alone=len(sizes) == 1)
    world = _World(tuple(sizes), master, _port(job, facts[0]))
    nodes = tuple(
        _plan_node(job, world, node_rank, host, fact)
        for node_rank, (host, fact) in enumerate(zip(hosts, facts, strict=True), first)
    )
    return LaunchPlan(job.program, nodes, len(sizes), sum(sizes), world.master_addr, world.master_port)


def refuse_unknown_ranks(plan: LaunchPlan, ranks: Set[int] | None) -> None:
    """Raise UsageError for ranks that the run won't have, if the GPUs of all hosts are known."""
    unknown = sorted(rank for rank in ranks or () if rank >= plan.world_size)
    if unknown and all(node.nproc for node in plan.nodes):
        there = f"ranks 0 to {plan.world_size - 1}" if plan.world_size > 1 else "only rank 0"
        raise UsageError(f"--ranks {','.join(map(str, unknown))}: the run has {there}", "omit --ranks to see all")


def count_processes(job: Job, host: Host, fact: NodeFacts) -> int:
    """Return how many ranks `host` gets: on CPUs one, unless a number was named."""
    return job.nproc or host.slots or (1 if job.cpu else count_visible(host, fact))


def settle_device(job: Job, facts: Sequence[NodeFacts]) -> Job:
    """Return the job on CPUs if it may run there and no host has GPUs.

    A host whose GPU tool fails may still have GPUs, so the job then stays as it is.
    """
    has_none = all(not fact.gpus and fact.gpu_error == messages.NO_GPU_TOOL for fact in facts)
    return replace(job, cpu=True) if job.may_use_cpus and facts and has_none else job


def count_visible(host: Host, fact: NodeFacts) -> int:
    """Return how many GPUs ranks may see, including MIG devices, which have no index."""
    is_known = host.gpus is not None or fact.visible_gpus is None
    return len(visible_gpus(host, fact)) if is_known else len(fact.visible_gpus or ())


def visible_gpus(host: Host, fact: NodeFacts) -> tuple[Gpu, ...]:
    """Return the GPUs that ranks may see, in their order: chosen with --include, else by CUDA_VISIBLE_DEVICES there."""
    chosen = fact.visible_gpus if host.gpus is None else host.gpus
    if chosen is None:
        return fact.gpus
    there = {gpu.index: gpu for gpu in fact.gpus}
    return tuple(there[index] for index in chosen if index in there)


def used_gpus(job: Job, host: Host, fact: NodeFacts) -> tuple[Gpu, ...]:
    """Return the GPUs that the ranks will use: one each, or all that were chosen with --include; none on CPUs."""
    gpus = visible_gpus(host, fact) if job.wants_gpus else ()
    return gpus if host.gpus is not None else gpus[: count_processes(job, host, fact)]


def master_address(host: Host, facts: Sequence[NodeFacts], *, alone: bool) -> str:
    """Return the address at which the other nodes reach node 0: addr=, or else its own address that SSH connected to.

    facts: of all nodes, node 0 first. If node 0 is the launch host itself, without SSH, it is the address
    from which the other nodes saw this machine connect.
    """
    if alone:
        return "127.0.0.1"
    own = {address for _, address in facts[0].addresses}
    seen = [fact.ssh_client for fact in facts[1:] if fact.ssh_client in own]
    seen.sort(key=lambda address: str(address).startswith("127."))  # a node on the launch host sees loopback
    for address in (host.address, facts[0].ssh_address, *seen, _first_outside(facts[0])):
        if address is not None and not address.lower().startswith("fe80:"):  # torch takes no scope after a %
            return address
    return "127.0.0.1"


def _first_outside(fact: NodeFacts) -> str | None:
    """Return the first address that other machines can reach: not a loopback one."""
    virtual = ("lo", "docker", "veth", "virbr", "br-")
    found = [address for name, address in fact.addresses if not name.startswith(virtual) and ":" not in address]
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class _World:
    sizes: tuple[int, ...]
    master_addr: str
    master_port: int | str

    def first_rank(self, node_rank: int) -> int:
        return sum(self.sizes[:node_rank])


def _port(job: Job, master: NodeFacts) -> int | str:
    if job.master_port is not None:
        return job.master_port
    if master.route is not None and master.route.port is not None:
        return master.route.port
    return f"<free port on {master.hostname}>"  # in a dry run; otherwise, the preflight has rejected it


def _plan_node(job: Job, world: _World, node_rank: int, host: Host, fact: NodeFacts) -> NodePlan:
    cwd = job.workdir if job.workdir is not None and fact.workdir_found else fact.home
    python_path = None
    if job.tree is not None and fact.tree is not None:
        cwd = job.tree.directory(fact.tree)
        python_path = job.tree.python_path(fact.tree, fact.python_path, fact.editables.values())
    env = _node_env(job, world, node_rank, host, fact)
    command = _rank_command(job.program, fact)
    nproc = world.sizes[node_rank]
    gpus = tuple(gpu.index for gpu in used_gpus(job, host, fact))
    node = NodePlan(
        host, node_rank, world.first_rank(node_rank), nproc, cwd, env, gpus=gpus, python_path=python_path
    )  # fmt: skip
    if not job.uses_torchrun:
        processes = _rank_processes(world, node_rank, command, env)
        if job.starts_warm:
            processes = tuple(_add_error_file(process, fact.folder) for process in processes)
        node = replace(node, processes=processes)
    if not job.uses_torchrun and not job.starts_warm:
        return replace(node, by_hand=_processes_by_hand(job, world, node, fact))
    options = _torchrun_options(job, world, node_rank, fact)
    by_hand = (str(fact.python), *TORCHRUN, *options, *_escape_macros(*_by_hand_program(job.program)))
    node = replace(node, by_hand=" && ".join([*_before(job, fact, cwd), _line(_shown(job, env, fact, node), by_hand)]))
    if job.starts_warm:
        return node
    log_dir = ("--log-dir", f"{fact.folder}/torchrun")
    own = _escape_macros(*command)
    return replace(node, argv=(str(fact.python), *TORCHRUN, *options, *log_dir, "--no-python", "--", *own))


def _torchrun_options(job: Job, world: _World, node_rank: int, fact: NodeFacts) -> tuple[str, ...]:
    """Return torchrun's options, with static rendezvous.

    It is the fastest, and the only one that keeps --node-rank: c10d sorts the nodes by name.
    """
    local = fact.route.address if fact.route else None
    return (
        "--nnodes", str(len(world.sizes)),
        "--node-rank", str(node_rank),
        "--nproc-per-node", str(world.sizes[node_rank] or "gpu"),  # not known in a dry run: torchrun counts them
        "--rdzv-backend", "static",
        "--rdzv-conf", f"timeout={job.rendezvous_timeout_s}",
        "--master-addr", world.master_addr,
        "--master-port", str(world.master_port),
        *(("--local-addr", local) if local else ()),
        "--max-restarts", "0",
    )  # fmt: skip


def _escape_macros(*words: str) -> tuple[str, ...]:
    """Double each dollar: torchrun puts every argument through string.Template (elastic/utils/api.py, macros)."""
    return tuple(word.replace("$", "$$") for word in words)


def _node_env(job: Job, world: _World, node_rank: int, host: Host, fact: NodeFacts) -> dict[str, str]:
    """Return the variables that the plan sets on a node, without those that the user or a setup has set."""
    env = {"PYTHONUNBUFFERED": "1"}
    nproc = world.sizes[node_rank]
    if fact.cpu_count:
        env["OMP_NUM_THREADS"] = str(max(1, fact.cpu_count // max(1, nproc)))
    interface = fact.route.interface if fact.route else None
    if interface:
        env["GLOO_SOCKET_IFNAME"] = interface
        # NCCL takes a plain name as a prefix: bond0 would allow bond0.200 too. It reads what follows a colon as a port.
        env["NCCL_SOCKET_IFNAME"] = interface if ":" in interface else f"={interface}"
    if fact.has_slow_dns:  # TCPStore looks up a name per connection; only here, since all of the trainer's get it too
        env["RES_OPTIONS"] = "timeout:1 attempts:2"
    if job.starts_warm:  # as torchrun does (elastic/agent/server/local_elastic_agent.py); torch's own default is 3
        env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if job.cpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    else:
        env |= _flight_recorder(fact)
        # CUDA's own order is by speed: on a host with unequal GPUs, its GPU 0 isn't the one that was checked.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if host.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(_name_for_cuda(host.gpus, fact))
    # An option has said which GPUs, or none.
    taken = job.env.keys() | (set(fact.setup_names) - {"CUDA_VISIBLE_DEVICES"})
    return {name: value for name, value in env.items() if not {name, _OLD_NAMES.get(name)} & taken}


def _name_for_cuda(chosen: Sequence[int], fact: NodeFacts) -> list[str]:
    """Return numbers of GPUs, or their UUIDs if one of the host is lost: CUDA may not count that one."""
    there = {gpu.index: gpu for gpu in fact.gpus}
    is_whole = [*there] == [*range(len(there))] and not any(gpu.fault for gpu in fact.gpus)
    uuids = [there[index].uuid for index in chosen if index in there]
    return list(map(str, chosen)) if is_whole or len(uuids) < len(chosen) or "" in uuids else uuids


def _flight_recorder(fact: NodeFacts) -> dict[str, str]:
    """Return the variables that turn on NCCL's flight recorder, as the torch there spells them.

    It is kept in memory and written when a collective times out, into the directory LAUNCH_FILES, whose files are
    copied to the launch host.
    """
    env = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{fact.folder}/files/{FLIGHT_RECORDER_PREFIX}",
    }
    if re.match(r"2\.[0-7]\.", fact.torch_version or ""):
        return {_OLD_NAMES.get(name, name): value for name, value in env.items()}
    return env


def _rank_command(program: Program, fact: NodeFacts) -> tuple[str, ...]:
    python = (str(fact.python), "-u")
    if program.kind is ProgramKind.SCRIPT:
        return (*python, program.target, *program.args)
    if program.kind is ProgramKind.MODULE:
        return (*python, "-m", program.target, *program.args)
    if program.kind is ProgramKind.BUILTIN:
        return (*python, f"{fact.folder}/{ARCHIVE_NAME}", program.target, *program.args)
    return (program.target, *program.args)


def _by_hand_program(program: Program) -> tuple[str, ...]:
    is_module = program.kind in (ProgramKind.MODULE, ProgramKind.BUILTIN)
    return (*(("-m",) if is_module else ()), "--", program.target, *program.args)


def _rank_processes(
    world: _World, node_rank: int, command: tuple[str, ...], env: Mapping[str, str]
) -> tuple[RankProcess, ...]:
    """Return the ranks that the shim starts, with the variables that torchrun would give them.

    So a plain command needs no torch on the node.
    """
    nproc, first = world.sizes[node_rank], world.first_rank(node_rank)
    common = {
        "WORLD_SIZE": str(sum(world.sizes)),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(world.sizes)),
        "ROLE_WORLD_SIZE": str(sum(world.sizes)),
        "ROLE_NAME": "default",
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    return tuple(
        RankProcess(
            local_rank,
            command,
            {**env, **common, "RANK": str(first + local_rank), "ROLE_RANK": str(first + local_rank),
             "LOCAL_RANK": str(local_rank)},
        )
        for local_rank in range(nproc)
    )  # fmt: skip


def _add_error_file(process: RankProcess, folder: str) -> RankProcess:
    """Return a rank with the file in which torch.distributed.elastic's @record writes why it failed, as torchrun's."""
    path = f"{folder}/error.{process.local_rank}.json"
    return replace(process, env={**process.env, "TORCHELASTIC_ERROR_FILE": path})


def _processes_by_hand(job: Job, world: _World, node: NodePlan, fact: NodeFacts) -> str:
    sent = f"{fact.folder}/{ARCHIVE_NAME}"  # by hand, the built-in trainer is a module that is installed
    lines = [
        _line(_shown(job, process.env, fact, node), ["-m" if word == sent else word for word in process.argv])
        for process in node.processes
    ]
    if not lines:
        return f"# one process per GPU of {fact.hostname}: --dry-run --check counts them"
    if not all(world.sizes):
        return "# the number of ranks depends on the GPUs of other hosts: --dry-run --check counts them"
    together = lines[0] if len(lines) == 1 else f"{{ {' & '.join(lines)} & wait; }}"
    return " && ".join([*_before(job, fact, node.cwd), together])


def _before(job: Job, fact: NodeFacts, cwd: str) -> list[str]:
    return [f"cd {quote_path(cwd)}", *setup_by_hand(job, fact)]


def _shown(job: Job, env: Mapping[str, str], fact: NodeFacts, node: NodePlan) -> dict[str, str]:
    """Return the environment for a command line to paste.

    It omits what points into a run's directory, which doesn't exist by hand, and what a setup has replaced.
    """
    kept = {name: value for name, value in job.env.items() if name in job.named_env or name not in fact.setup_names}
    path = {"PYTHONPATH": node.python_path} if node.python_path else {}
    return kept | path | {name: value for name, value in env.items() if not value.startswith(f"{fact.folder}/")}


def _line(env: Mapping[str, str], argv: Sequence[str]) -> str:
    return " ".join(["env", *shell_assignments(env), shlex.join(argv)] if env else [shlex.join(argv)])


def placeholder_facts(job: Job, host: Host) -> NodeFacts:
    """Return facts for a dry run, with placeholders such as `<home on gpu1>` for what only the node knows."""
    name = host.name
    return NodeFacts(
        folder=f"<run directory on {name}>",
        hostname=name,
        cpu_count=None,
        home=f"<home on {name}>",
        ssh_address=f"<address of {name}>",
        tree=f"<code on {name}>" if job.tree is not None else None,
        python=job.python or ("python" if job.activation.has_python else f"<python with torch on {name}>"),
        route=Route(
            interface=f"<interface of {name}>",
            address=host.address or f"<address of {name}>",
            port=job.master_port,
        ),
    )


def warm_fields(job: Job, host: Host, fact: NodeFacts, attempt: int = 0) -> dict[str, Any] | None:
    """Return what a supervisor needs to import torch for its ranks; None if too little is known.

    The other hosts aren't known yet; what depends on them, such as an interface, is read long after the import.
    """
    job = settle_device(job, [fact])
    nproc = count_processes(job, host, fact)
    if not fact.python_is_warmable or fact.python is None or not nproc:
        return None
    node = _plan_node(job, _World((nproc,), "", 0), 0, host, fact)
    env = {**node.processes[0].env, "LAUNCH_ATTEMPT": str(attempt)}
    return {"argv": node.processes[0].argv, "env": env, "cwd": node.cwd, "python_path": node.python_path}


def start_fields(node: NodePlan, attempt: int = 0) -> dict[str, Any]:
    """Return what a supervisor is told to start; attempt: how many came before this one."""
    own = {"LAUNCH_ATTEMPT": str(attempt)}
    return {
        "torchrun_args": node.argv[1 + len(TORCHRUN) :],
        "env": {**node.env, **own},
        "cwd": node.cwd,
        "python_path": node.python_path,
        "local_ranks": list(range(node.nproc)),
        "processes": [
            {"rank": process.local_rank, "argv": process.argv,
             "env": {**process.env, **own, "TORCHELASTIC_RESTART_COUNT": str(attempt)}}
            for process in node.processes
        ],
    }  # fmt: skip
