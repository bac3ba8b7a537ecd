"""launch sbatch: a Slurm batch script that runs the same job."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import click

from launcher.cli.job_request import read_job
from launcher.cli.misplaced_words import part_words
from launcher.cli.options.file_owners import refuse_strange_folder
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
from launcher.cli.options.sources import gather, is_chosen
from launcher.cli.options.toml_files import current_directory
from launcher.cli.typed_command import own_program, typed_options
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.sbatch_script import Batch, batch_text, check_batch, log_folder
from launcher.job.variables import is_secret, parse_settings
from launcher.transports.registry import SRUN


@click.command("sbatch", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *BATCH, *JOB, *HANGS, *RESTARTS, *SPARES, NO_CHECK, *(option.but(is_common=False) for option in OUTPUT),
    WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Print a Slurm batch script that runs SCRIPT on every node of the job.

    Slurm writes slurm-JOB.out and .err to --log-dir, next to the logs of the run. Before the time limit, the ranks get
    SIGTERM and --stop-timeout to save. With --requeue, the built-in trainer resumes in the requeued job; your own
    script can check that SLURM_RESTART_COUNT is set.
    """
    job = read_job(request, [Host("each node", source="--nodes")])
    batch = read_batch(request, job)
    check_batch(batch)
    if request.submit:
        _check_script(job, request.workdir)
    text = batch_text(batch)
    if request.output is not None:
        _write(request.output, text)
    secrets = _secrets(request)
    if request.submit:
        if not is_chosen("log_dir"):
            refuse_strange_folder(request.log_dir)
        _make_folder(Path(log_folder(batch)))
        job_id = submit(text, {**os.environ, **secrets})
        click.echo(job_id)
        notes = [f"submitted job {job_id}", *_watch_lines(batch, job_id)]
    elif request.output is not None:
        file = shlex.quote(str(request.output))
        notes = [f"start it with: mkdir -p {shlex.quote(log_folder(batch))} && sbatch {file}", *_secret_lines(secrets)]
    else:
        click.echo(text, nl=False)
        notes = _secret_lines(secrets)
    for line in [*notes, *_warnings(batch, job)]:
        click.echo(f"launch: {line}" if not line.startswith(" ") else line, err=True)
    return 0


def read_batch(request: Request, job: Job) -> Batch:
    """Return what is requested from Slurm; `job` is what is requested from `launch`."""
    gpus = job.nproc or 0 if job.wants_gpus else 0
    if job.wants_gpus and not gpus:
        fix = "pass --gpus N before SCRIPT, or --nproc N --cpu to train on CPUs"
        raise UsageError("Slurm needs the number of GPUs per node", fix)
    batch = name_all(BATCH)
    # Ignore the hosts of launcher.toml; the job reads it again, since it runs in this directory.
    launch = (own_program(), "--transport", SRUN.name, *typed_options(lambda name: name not in batch))
    return Batch(
        argv=(*launch, *part_words(request.words)),
        job_name=_name(job.program),
        gpus=gpus,
        folder=str(current_directory()),
        log_dir=str(request.log_dir),
        stop_timeout_s=job.timeouts.stop_timeout_s,
        directives=request.directive,
        nodes=request.nodes,
        time=request.time,
        cpus_per_task=request.cpus_per_task,
        requeue=request.requeue,
    )


def _secrets(request: Request) -> dict[str, str]:
    settings = parse_settings(request.env, os.environ)
    return {name: value for name, value in settings.items() if is_secret(name, value)}


def _name(program: Program) -> str:
    return PurePosixPath(program.target).stem if program.kind is ProgramKind.SCRIPT else program.target


def _check_script(job: Job, workdir: str | None) -> None:
    """Raise UsageError for a script that doesn't exist, which the job would notice only after its time in the queue."""
    path = Path(job.workdir or "", job.program.target)
    if job.program.kind is ProgramKind.SCRIPT and workdir is None and not path.is_file():
        raise UsageError(
            f"{job.program.target}: no such file", "if it exists only on the nodes, pass its directory with --workdir"
        )


def _make_folder(path: Path) -> None:
    """Make the directory of Slurm's logs: a job whose log can't be opened fails silently."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "name another directory with --log-dir") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(os.fsencode(text))  # an argument may not be valid UTF-8
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def submit(text: str, env: Mapping[str, str]) -> str:
    """Pass the script to sbatch and return the job's number; raise LauncherError with the error of sbatch."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=text,
            env=env,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        fix = "run this on a machine of the cluster, or copy the script there: --output FILE"
        raise LauncherError("sbatch isn't installed on this machine", fix) from None
    if done.returncode:
        said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        raise LauncherError(f"sbatch: {'; '.join(said) or f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]  # ;CLUSTER may follow


def _watch_lines(batch: Batch, job_id: str) -> list[str]:
    logs = [shlex.quote(f"{batch.log_dir}/slurm-{job_id}.{end}") for end in ("out", "err")]
    return [
        f"  squeue -j {job_id}",
        f"  tail -F {' '.join(logs)}",
        f"  scancel --batch --signal=TERM {job_id}    # stops it; the ranks get --stop-timeout to save",
    ]


def _secret_lines(secrets: Mapping[str, str]) -> list[str]:
    return [f"{name} is a secret, so it isn't in the script; fix: set it where you run sbatch" for name in secrets]


def _warnings(batch: Batch, job: Job) -> list[str]:
    lines = []
    if batch.cpus_per_task is None and "--exclusive" not in batch.directives:
        lines.append(
            "without --cpus-per-task, the ranks of a node may have to share one CPU; fix: pass --cpus-per-task N"
        )
    if batch.requeue and job.program.kind is not ProgramKind.BUILTIN:
        lines.append("Slurm sets SLURM_RESTART_COUNT in a requeued job; fix: make your script resume if it is set")
    return lines
