"""launch sbatch: the same job as a Slurm batch script."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

import click

from launcher.cli.defaults import current_directory
from launcher.cli.file_owners import refuse_strange_folder
from launcher.cli.help import Command
from launcher.cli.job_request import read_job
from launcher.cli.option_groups import JobRequest, gather
from launcher.cli.option_sources import is_chosen, missing, typed_options
from launcher.cli.options import (
    FILE,
    check_options,
    config_option,
    hang_options,
    job_options,
    output_options,
)
from launcher.cli.trailing_options import needs_parting
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.sbatch_script import Batch, batch_text, check_batch, log_folder
from launcher.job.variables import is_secret, parse_settings
from launcher.transports.registry import SRUN


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of this command alone; all others are those of the `launch` in the script."""

    nodes: int
    time: str | None
    partition: str | None
    mem: str | None
    cpus_per_task: int | None
    account: str | None
    qos: str | None
    constraint: str | None
    job_name: str | None
    directive: tuple[str, ...]  # each a line of its own
    requeue: bool
    output: Path | None  # where the script is written
    submit: bool


@click.command("sbatch", cls=Command, context_settings={"allow_interspersed_args": False})
@config_option
@click.option("--nodes", metavar="N", type=int, default=1, show_default=True, help="Nodes of the job.")
@click.option("--time", metavar="TIME", help="Time limit: minutes, H:M:S or D-H.")
@click.option("--partition", metavar="NAME", help="Partition.")
@click.option("--mem", metavar="SIZE", help="Memory of each node: 64G; 0 is all.")
@click.option("--cpus-per-task", metavar="N", type=int, help="CPUs per node, which its ranks share.")
@click.option("--account", metavar="NAME", help="Account to charge.")
@click.option("--qos", metavar="NAME", help="Quality of service.")
@click.option("--constraint", metavar="LIST", help="Features that the nodes must have.")
@click.option("--job-name", metavar="NAME", help="Default: the script's name.")
@click.option("--directive", metavar="OPTION", multiple=True, help="Add an #SBATCH line: --directive=--exclusive.")
@click.option("--requeue", is_flag=True, help="Requeue at the time limit and if a node fails.")
@click.option("--output", metavar="FILE", type=FILE, help="Write the script to FILE.")
@click.option("--submit", is_flag=True, help="Submit the script, and say how to watch the job.")
@job_options
@hang_options
@check_options
@output_options
@click.argument("words", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED)
@gather
def command(*, words: tuple[str, ...], log_dir: Path, batch_options: BatchOptions, request: JobRequest) -> int:
    """Print a batch script for Slurm that runs SCRIPT on every node of the job.

    Slurm's logs go to slurm-JOB.out and .err in --log-dir, beside those of the run.
    Before the time limit the ranks get SIGTERM and --stop-timeout to save.
    A job that goes back into the queue has SLURM_RESTART_COUNT set; the built-in trainer then resumes.
    """
    job = read_job(request, words, [Host("each node", source="--nodes")])
    batch = read_batch(batch_options, log_dir, words, job)
    check_batch(batch)
    if batch_options.submit:
        _check_script(job, request.workdir)
    text = batch_text(batch)
    if batch_options.output is not None:
        _write(batch_options.output, text)
    secrets = _secrets(request)
    if batch_options.submit:
        if not is_chosen("log_dir"):
            refuse_strange_folder(log_dir)
        _make_folder(Path(log_folder(batch)))
        job_id = submit(text, {**os.environ, **secrets})
        click.echo(job_id)
        notes = [f"job {job_id} is submitted", *_watch_lines(batch, job_id)]
    elif batch_options.output is not None:
        file = shlex.quote(str(batch_options.output))
        notes = [f"start it with: mkdir -p {shlex.quote(log_folder(batch))} && sbatch {file}", *_secret_lines(secrets)]
    else:
        click.echo(text, nl=False)
        notes = _secret_lines(secrets)
    for line in [*notes, *_warnings(batch, job)]:
        click.echo(f"launch: {line}" if not line.startswith(" ") else line, err=True)
    return 0


def read_batch(options: BatchOptions, log_dir: Path, words: tuple[str, ...], job: Job) -> Batch:
    """Return what the options ask of Slurm; the job is what they ask of `launch`."""
    gpus = job.nproc or 0 if job.wants_gpus else 0
    if job.wants_gpus and not gpus:
        fix = "--gpus N; on CPUs: --nproc N --cpu"
        raise missing("Slurm must know how many GPUs of each node", fix, ("gpus", "nproc"))
    # Whatever hosts launcher.toml names; it is read again by the job, which runs in this folder.
    launch = (own_program(), "--transport", SRUN.name, *typed_options({field.name for field in fields(BatchOptions)}))
    is_of_file = words and words[0].startswith("-")  # arguments for the script of launcher.toml
    for_script = ("--",) if is_of_file or needs_parting(words) else ()
    return Batch(
        argv=(*launch, *for_script, *words),
        job_name=options.job_name or _name(job.program),
        gpus=gpus,
        folder=str(current_directory()),
        log_dir=str(log_dir),
        stop_timeout_s=job.stop_timeout_s,
        directives=options.directive,
        nodes=options.nodes,
        time=options.time,
        partition=options.partition,
        mem=options.mem,
        cpus_per_task=options.cpus_per_task,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        requeue=options.requeue,
    )


def own_program() -> str:
    """Return the path of this `launch`: the PATH of a job may be another one."""
    typed = Path(sys.argv[0])
    if typed.name != "launch":
        return str(Path(sys.executable).with_name("launch"))
    return str(typed if typed.is_absolute() else current_directory() / typed)


def _secrets(request: JobRequest) -> dict[str, str]:
    settings = parse_settings(request.env, os.environ)
    return {name: value for name, value in settings.items() if is_secret(name, value)}


def _name(program: Program) -> str:
    return PurePosixPath(program.target).stem if program.kind is ProgramKind.SCRIPT else program.target


def _check_script(job: Job, workdir: str | None) -> None:
    """Raise UsageError for a script that is not here; the job would find that out after its time in the queue."""
    path = Path(job.workdir or "", job.program.target)
    if job.program.kind is ProgramKind.SCRIPT and workdir is None and not path.is_file():
        raise UsageError(
            f"{job.program.target}: no such file", "--workdir names the nodes' folder, if it is there alone"
        )


def _make_folder(path: Path) -> None:
    """Make the folder of Slurm's logs: a job whose log can't be opened ends without a word."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "--log-dir names another folder") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(os.fsencode(text))  # an argument may be no text
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def submit(text: str, env: Mapping[str, str]) -> str:
    """Give the script to sbatch and return the job's number; raise LauncherError with sbatch's own words."""
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
        fix = "type this on a machine of the cluster, or take the script there: --output FILE"
        raise LauncherError("there is no sbatch on this machine", fix) from None
    if done.returncode:
        said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        raise LauncherError(f"sbatch: {'; '.join(said) or f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]  # ;CLUSTER may follow


def _watch_lines(batch: Batch, job_id: str) -> list[str]:
    logs = [shlex.quote(f"{batch.log_dir}/slurm-{job_id}.{end}") for end in ("out", "err")]
    return [
        f"  squeue -j {job_id}",
        f"  tail -F {' '.join(logs)}",
        f"  scancel --batch --signal=TERM {job_id}    # ends it, and leaves the ranks --stop-timeout to save",
    ]


def _secret_lines(secrets: Mapping[str, str]) -> list[str]:
    return [f"{name} is a secret and not in the script: set it where you type sbatch" for name in secrets]


def _warnings(batch: Batch, job: Job) -> list[str]:
    lines = []
    if batch.cpus_per_task is None and "--exclusive" not in batch.directives:
        lines.append("without --cpus-per-task the ranks of a node may have to share one CPU")
    if batch.requeue and job.program.kind is not ProgramKind.BUILTIN:
        lines.append("a job that was requeued has SLURM_RESTART_COUNT set: your script must resume then")
    return lines
