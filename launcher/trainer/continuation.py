"""The command that continues a run: what was typed, with the run's directory and --resume."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.distributed import SINGLE_PROCESS, TORCHRUN, Attempt, World
from launcher.trainer.options import flag

MODULE = "-m launcher.trainer"


def continue_command(argv: Sequence[str], world: World, attempt: Attempt, save_dir: str, epochs: int = 0) -> str:
    """Return a command line to paste; `...` replaces options of torchrun, srun or mpirun that the ranks don't see.

    epochs: the total number of epochs, to extend a run that has finished.
    """
    replaced = ("--save-dir", "--resume", *(("--epochs",) if epochs else ()))
    words = [*leave_out(argv, replaced), "--save-dir", save_dir]
    words += ["--epochs", str(epochs)] if epochs else []
    return f"{describe_starter(world, attempt)} {shlex.join([*words, '--resume'])}"


def describe_starter(world: World, attempt: Attempt) -> str:
    """Return the start of the command line, before the trainer's own options."""
    python = Path(sys.executable).name
    if attempt.command:
        return attempt.command
    if world.launched_by == SINGLE_PROCESS:
        return f"{python} {MODULE}"
    return f"torchrun ... {MODULE}" if world.launched_by == TORCHRUN else f"{world.launched_by} ... {python} {MODULE}"


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
