"""The command that continues a run: what was typed, with the run's directory and --resume."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher import distributed
from launcher.distributed import SINGLE_PROCESS, TORCHRUN, Attempt, World
from launcher.trainer.options import flag


def continue_command(argv: Sequence[str], world: World, attempt: Attempt, save_dir: str, epochs: int = 0) -> str:
    """Return a command line to paste; `...` replaces what the ranks can't see of torchrun or mpirun on several nodes.

    epochs: the total number of epochs, to extend a run that has finished.
    """
    replaced = ("--save-dir", "--resume", *(("--epochs",) if epochs else ()))
    words = [*leave_out(argv, replaced), "--save-dir", save_dir]
    words += ["--epochs", str(epochs)] if epochs else []
    starter = attempt.command or f"{describe_starter(world, attempt)} {shlex.join(name_program(argv))}"
    return f"{starter} {shlex.join([*words, '--resume'])}"


def describe_starter(world: World, attempt: Attempt) -> str:
    """Return the start of the command line, before the program."""
    python = shlex.quote(name_python())
    if world.launched_by == SINGLE_PROCESS:
        return python
    if world.job_id is not None:
        return f"{shlex.join(plan_step(world, attempt.partition))} {python}"
    if world.launched_by == TORCHRUN:
        return f"torchrun --nproc-per-node {world.world_size}" if world.node_count == 1 else "torchrun ..."
    return f"{world.launched_by} ... {python}"


def plan_step(world: World, partition: str) -> list[str]:
    """Return an srun for as many ranks on as many nodes, in this Slurm job or, once it is over, in one of its own."""
    tasks, left = divmod(world.world_size, world.node_count)
    step = [f"--ntasks={world.world_size}"] if left else [f"--ntasks-per-node={tasks}"]
    step += [f"--cpus-per-task={distributed.cpu_count()}"]  # a step gets one CPU per task since Slurm 22.05
    step += [f"--gpus-per-node={world.local_world_size}"] if world.device.type == "cuda" else []
    return ["srun", f"--nodes={world.node_count}", *step, *([f"--partition={partition}"] if partition else [])]


def name_python() -> str:
    """Return the name of this Python if typing it starts this one, or else its path."""
    name = Path(sys.executable).name
    return name if shutil.which(name) == sys.executable else sys.executable


def name_program(argv: Sequence[str]) -> list[str]:
    """Return what Python runs: the script that was typed with these options, such as train.py, or else the module."""
    is_script = getattr(sys.modules["__main__"], "__spec__", None) is None and sys.argv[0].endswith(".py")
    return [sys.argv[0]] if is_script and list(argv) == sys.argv[1:] else ["-m", "launcher.trainer"]


def leave_out(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words of a command line without these options and their values."""
    kept: list[str] = []
    is_value = False  # of an omitted option
    for word in argv:
        if word.startswith("--"):
            name, equals, _ = flag(word[2:]).partition("=")
            is_value = name in names and not equals
            if name in names:
                continue
        elif is_value:
            is_value = False
            continue
        kept.append(word)
    return kept
