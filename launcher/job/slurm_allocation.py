"""Read the Slurm allocation that `launch` runs in from SLURM_* variables alone, without calling scontrol.

The environment is passed in as a mapping, so nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import expand_names, fold_names, split_list
from launcher.wording import count

# Steps that are shells and no tasks (batch, interactive, extern): Slurm counts them down from 0xffffffff (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_REPEATED = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,5})\))?")
_GPU_COUNT = re.compile(r"(?:[^,:]+:)*([0-9]{1,9})")
# Slurm's variables that srun may see: it would read the others as options, or they describe a step.
_JOB_NAMES = (
    "SLURM_JOB_", "SLURM_JOBID", "SLURM_NODELIST", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_CONF", "SLURM_CLUSTER_NAME",
    "SLURM_WORKING_CLUSTER", "SLURM_JWT", "SLURM_RESTART_COUNT",
)  # fmt: skip
_SLURM_NAMES = ("SLURM", "SRUN_", "PMI_", "PMI2_", "PMIX_")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes and GPUs that a Slurm job has; None: unknown from its variables."""

    job_id: str
    nodes: tuple[str, ...]  # in Slurm's order
    gpus_per_node: int | None = None

    @property
    def name(self) -> str:
        return f"Slurm job {self.job_id}"

    def hosts(self) -> tuple[Host, ...]:
        """Return its nodes as hosts."""
        return tuple(Host(node, source=self.name) for node in self.nodes)

    def describe(self) -> str:
        """Return the job, its nodes and their GPUs in one line."""
        words = f", {count(self.gpus_per_node, 'GPU')} on each" if self.gpus_per_node else ""
        return f"{self.name}: {count(len(self.nodes), 'node')}, {fold_names(self.nodes)}{words}"


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that these variables describe; raise UsageError if one of them is malformed."""
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    name = "SLURM_JOB_NODELIST" if environ.get("SLURM_JOB_NODELIST") else "SLURM_NODELIST"
    if not job_id or not environ.get(name):
        return None
    nodes = _read_nodes(name, environ[name])
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        gpus_per_node=_read_gpus(environ, len(nodes)),
    )


def count_tasks(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of the srun step that this process belongs to; 0 in a shell or outside Slurm.

    sbatch's script has SLURM_PROCID as well, but no SLURM_STEP_ID, or that of a special step. With `srun --pty bash`
    the first task has the terminal, and the others exit at once. A step of one task counts as a shell, since it starts
    one run.
    """
    step, rank = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_PROCID")
    if not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP or rank is None:
        return 0
    if rank == "0" and "SLURM_PTY_PORT" in environ:
        return 0
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or ""
    return int(tasks) if tasks.isdecimal() else 1


def refuse_tasks(environ: Mapping[str, str]) -> None:
    """Raise UsageError if each of several tasks would start a run of its own."""
    tasks = count_tasks(environ)
    if tasks > 1:
        raise UsageError(
            f"srun has started launch {tasks} times, and each would start its own run",
            "start it once, without srun: it reaches every node of the job by itself",
        )


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun, without the variables that sbatch made of its own options.

    srun would read each of those as an option.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_SLURM_NAMES) or name.startswith(_JOB_NAMES)
    }


def _read_nodes(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(node for element in split_list(text) for node in expand_names(element)))
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", error.fix) from None


def _read_repeated(environ: Mapping[str, str], name: str) -> tuple[int, ...]:
    """Read `8(x2),4` as 8, 8, 4; an unknown form counts as if the variable were not set."""
    numbers: list[int] = []
    for word in environ.get(name, "").split(","):
        found = _REPEATED.fullmatch(word)
        if found is None:
            return ()
        numbers += [int(found[1])] * int(found[2] or 1)
    return tuple(numbers)


def _read_gpus(environ: Mapping[str, str], node_count: int) -> int | None:
    """Return how many GPUs each node has, if all have as many; None after salloc --gres, which sets no variable."""
    if text := environ.get("SLURM_GPUS_PER_NODE"):
        return _count_gpus(text)
    if total := _count_gpus(environ.get("SLURM_GPUS", "")):
        return total // node_count if total % node_count == 0 else None
    if text := environ.get("SLURM_GPUS_ON_NODE"):
        return _count_gpus(text)
    tasks = _read_repeated(environ, "SLURM_TASKS_PER_NODE")
    per_task = _count_gpus(environ.get("SLURM_GPUS_PER_TASK", ""))
    return per_task * tasks[0] if per_task and len(set(tasks)) == 1 else None


def _count_gpus(text: str) -> int | None:
    """Count `2`, `a100:2` or `a100:1,h100:2`."""
    found = [_GPU_COUNT.fullmatch(word) for word in text.split(",")]
    return sum(int(match[1]) for match in found if match) if all(found) else None
