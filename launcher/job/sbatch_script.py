"""Write the text of a Slurm batch script that runs `launch` on all nodes of the job, for Slurm 20.11 and newer.

Nothing here does I/O.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.errors import UsageError

# Added to the time that ranks have to save, for launch to stop the rest and check what is left. Slurm sends its signal
# up to a minute early, and never late.
SIGNAL_MARGIN_S = 45
_MOST_SIGNAL_S = 65535  # sbatch takes no more

# minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?", re.ASCII)
_PLAIN = re.compile(r"[\w@%+=:,./&|-]+", re.ASCII)

# The signal is USR1 here: scancel sends TERM, and a cancelled job must not be requeued. The script has to stay alive
# for scontrol; `wait` returns at each signal, so it waits until launch is gone.
_REQUEUE = """\
trap 'is_due=yes; kill -TERM "$launch"' USR1
trap 'kill -TERM "$launch"' TERM
{command} &
launch=$!
while wait "$launch"; code=$?; kill -0 "$launch" 2>/dev/null; do :; done
if [ -n "${{is_due-}}" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch job asks of Slurm, and the `launch` command that runs in it; None: the cluster decides."""

    argv: tuple[str, ...]  # launch, with its options and the program
    job_name: str
    nodes: int
    gpus: int  # of each node
    folder: str  # where the job runs
    log_dir: str
    stop_timeout_s: float  # the time that ranks have to save
    time: str | None = None
    cpus_per_task: int | None = None  # a task is one node's part of the job
    directives: tuple[str, ...] = ()  # more options of sbatch
    requeue: bool = False

    @property
    def signal_s(self) -> int:
        """Return how many seconds before the time limit Slurm sends the signal to stop."""
        return math.ceil(self.stop_timeout_s) + SIGNAL_MARGIN_S


def check_batch(batch: Batch) -> None:
    """Raise UsageError for values that sbatch would refuse or misread."""
    for directive in batch.directives:
        if not directive.startswith("-"):
            fix = "write it as in --directive=--partition=gpu"
            raise UsageError(f"--directive: must be an option of sbatch, got {directive!r}", fix)
    for text in (batch.job_name, *batch.directives, batch.folder, batch.log_dir):
        if not text.isprintable():
            raise UsageError(f"not allowed in a batch script: {text!r}")
    for path in (batch.folder, batch.log_dir):
        if "%" in path or "\\" in path:
            raise UsageError(f"{path}: Slurm treats % and \\ in the path of its logs specially")
    _check_time(batch)


def _check_time(batch: Batch) -> None:
    if batch.signal_s > _MOST_SIGNAL_S:
        raise UsageError(f"--stop-timeout {batch.stop_timeout_s:g}: Slurm can't signal that long before the end")
    if batch.time is None:
        return
    limit_s = time_limit_s(batch.time)
    if limit_s and limit_s <= batch.signal_s:
        raise UsageError(
            f"--time {batch.time}: its last {batch.signal_s} s are for saving and stopping",
            "raise --time, or lower --stop-timeout",
        )


def time_limit_s(text: str) -> int:
    """Return the seconds of a time limit as Slurm writes it; 0: no limit."""
    found = _TIME.fullmatch(text)
    if found is None:
        fix = "write 90 (minutes), 12:00:00 or 2-12"
        raise UsageError(f"--time: must be a time as Slurm writes it, got {text!r}", fix)
    days, *others = found.groups()
    numbers = [int(number) for number in others if number is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    hours, minutes, seconds = {1: [0, *numbers, 0], 2: [0, *numbers], 3: numbers}[len(numbers)]
    return (hours * 60 + minutes) * 60 + seconds


def batch_text(batch: Batch) -> str:
    """Return the script; `batch` must have passed `check_batch`."""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _directives(batch)), ""]
    lines += [f"# {line}" for line in _comments(batch)]
    command = shlex.join(batch.argv)
    return "\n".join(lines) + "\n" + (_REQUEUE.format(command=command) if batch.requeue else f"exec {command}\n")


def _directives(batch: Batch) -> Iterable[str]:
    values = {
        "job-name": batch.job_name,
        "nodes": batch.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": batch.cpus_per_task,
        "gres": f"gpu:{batch.gpus}" if batch.gpus else None,
        "time": batch.time,
        "chdir": batch.folder,
        "output": f"{batch.log_dir}/slurm-%j.out",
        "error": f"{batch.log_dir}/slurm-%j.err",
    }
    yield from (f"--{name}={_quote(str(value))}" for name, value in values.items() if value is not None)
    yield from ("--requeue", "--open-mode=append") if batch.requeue else ("--no-requeue",)
    yield f"--signal=B:{'USR1' if batch.requeue else 'TERM'}@{batch.signal_s}"
    yield from batch.directives


def _comments(batch: Batch) -> Iterable[str]:
    yield "Written by `launch sbatch`."
    yield f"Slurm doesn't create the directory of its logs: mkdir -p {shlex.quote(log_folder(batch))}"
    save_s = f"{batch.stop_timeout_s:g} s"
    yield f"{batch.signal_s} s before the time limit, launch gets a signal; ranks have {save_s} to save."
    if batch.requeue:
        yield "Then the job is requeued; SLURM_RESTART_COUNT counts its restarts, for the ranks too."


def log_folder(batch: Batch) -> str:
    """Return where Slurm's logs go."""
    return batch.log_dir if batch.log_dir.startswith("/") else f"{batch.folder}/{batch.log_dir}"


def _quote(value: str) -> str:
    """Quote a value as sbatch reads it: a space ends a word even after a backslash, and `#` begins a comment."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
