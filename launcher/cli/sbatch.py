"""launch sbatch: a Slurm batch script that runs the same job, for Slurm 20.11 and newer.

It is only printed: sbatch takes a script on stdin, and its own options on its command line win over those in the text.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import click

from launcher.cli.job_request import read_job
from launcher.cli.misplaced_words import part_words
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    BATCH,
    HANGS,
    JOB,
    NO_CHECK,
    OUTPUT,
    RESTARTS,
    SPARES,
    WORDS,
    Request,
    name_all,
)
from launcher.cli.options.sources import gather
from launcher.cli.options.toml_files import current_directory
from launcher.cli.typed_command import own_program, typed_options
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.variables import is_secret, parse_settings
from launcher.transports.registry import SRUN

# Added to the time that ranks have to save, for launch to stop the rest and check what is left. Slurm sends its signal
# up to a minute early, and never late.
SIGNAL_MARGIN_S = 45
_PLAIN = re.compile(r"[\w@%+=:,./&|-]+", re.ASCII)

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={job_name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gres}#SBATCH --chdir={directory}
#SBATCH --output=slurm-%j.out
#SBATCH --error=slurm-%j.err
#SBATCH --{requeue}
#SBATCH --open-mode=append
#SBATCH --signal=B:{signal}@{signal_s}

# Written by `launch sbatch`. Pass it to sbatch with what else the job needs: sbatch --time=4:00:00 --cpus-per-task=32
# {signal_s} s before the time limit, launch gets a signal; ranks have {save_s:g} s to save.
"""
# The signal is USR1 here: scancel sends TERM, and a cancelled job must not be requeued. The script has to stay alive
# for scontrol; `wait` returns at each signal, so it waits until launch is gone.
_REQUEUE = """\
# Then the job is requeued; SLURM_RESTART_COUNT counts its restarts, for the ranks too.
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


@click.command("sbatch", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *BATCH, *JOB, *HANGS, *RESTARTS, *SPARES, NO_CHECK, *OUTPUT,
    WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Print a Slurm batch script that runs SCRIPT on every node of the job.

    Pass it to sbatch, with what else Slurm needs to know: launch sbatch ... | sbatch --time=4:00:00. Before the time
    limit, the ranks get SIGTERM and --stop-timeout to save. With --requeue, the built-in trainer resumes in the
    requeued job; your own script can check that SLURM_RESTART_COUNT is set.
    """
    job = read_job(request, [Host("each node", source="--nodes")])
    text = _describe(request, job)
    _check_script(job, request.workdir)
    click.echo(os.fsencode(text), nl=False)  # an argument may not be valid UTF-8
    for line in [*_secret_lines(request), *_warnings(request, job)]:
        click.echo(f"launch: {line}", err=True)
    return 0


def _describe(request: Request, job: Job) -> str:
    gpus = job.nproc or 0 if job.wants_gpus else 0
    if job.wants_gpus and not gpus:
        fix = "pass --gpus N before SCRIPT, or --nproc N --cpu to train on CPUs"
        raise UsageError("Slurm needs the number of GPUs per node", fix)
    batch = name_all(BATCH)
    # Ignore the hosts of launcher.toml; the job reads it again, since it runs in this directory.
    launch = (own_program(), "--transport", SRUN.name, *typed_options(lambda name: name not in batch))
    return batch_text(
        (*launch, *part_words(request.words)), _name(job.program), str(current_directory()), nodes=request.nodes,
        gpus=gpus, save_s=job.timeouts.stop_timeout_s, is_requeued=request.requeue,
    )  # fmt: skip


def batch_text(
    argv: Sequence[str], name: str, folder: str, *, nodes: int, gpus: int, save_s: float, is_requeued: bool
) -> str:
    """Return the script; raise UsageError for what sbatch would misread.

    gpus: of each node; `folder`: where the job runs; save_s: how long ranks may save.
    """
    if not (folder + name).isprintable() or "%" in folder or "\\" in folder:
        raise UsageError(f"{folder!r}, {name!r}: Slurm can't have a name with control characters, or % or \\ in a path")
    head = _SCRIPT.format(
        job_name=_quote(name), nodes=nodes, gres=f"#SBATCH --gres=gpu:{gpus}\n" if gpus else "",
        directory=_quote(folder), requeue="requeue" if is_requeued else "no-requeue",
        signal="USR1" if is_requeued else "TERM", signal_s=math.ceil(save_s) + SIGNAL_MARGIN_S, save_s=save_s,
    )  # fmt: skip
    command = shlex.join(argv)
    return head + (_REQUEUE.format(command=command) if is_requeued else f"exec {command}\n")


def _name(program: Program) -> str:
    return PurePosixPath(program.target).stem if program.kind is ProgramKind.SCRIPT else program.target


def _quote(value: str) -> str:
    """Quote a value as sbatch reads it: a space ends a word even after a backslash, and `#` begins a comment."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _check_script(job: Job, workdir: str | None) -> None:
    """Raise UsageError for a script that doesn't exist, which the job would notice only after its time in the queue."""
    path = Path(job.workdir or "", job.program.target)
    if job.program.kind is ProgramKind.SCRIPT and workdir is None and not path.is_file():
        raise UsageError(
            f"{job.program.target}: no such file", "if it exists only on the nodes, pass its directory with --workdir"
        )


def _secret_lines(request: Request) -> list[str]:
    settings = parse_settings(request.env, os.environ)
    names = [name for name, value in settings.items() if is_secret(name, value)]
    return [f"{name} is a secret, so it isn't in the script; fix: set it where you run sbatch" for name in names]


def _warnings(request: Request, job: Job) -> list[str]:
    if not request.requeue or job.program.kind is ProgramKind.BUILTIN:
        return []
    return ["Slurm sets SLURM_RESTART_COUNT in a requeued job; fix: make your script resume if it is set"]
