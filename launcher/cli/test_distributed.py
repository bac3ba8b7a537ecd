"""test-distributed N: test N processes (per host): connectivity, correct results and bandwidth."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from launcher.cli import runner
from launcher.cli.host_choice import choose_opener, open_this_machine, read_hosts
from launcher.cli.job_request import read_activation
from launcher.cli.options.command import Command, gather, is_on_command_line
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    ACTIVATION,
    CPU,
    HOSTS,
    LOAD,
    MOST_MIB,
    OUTPUT,
    PROCESSES,
    PYTHON,
    REACH,
    STEP_TIMEOUT,
    Option,
    Request,
)
from launcher.diagnosis.failure import FailureKind
from launcher.errors import EXIT_PREFLIGHT, EXIT_SIGNAL_BASE, LauncherError
from launcher.hosts.host import Host
from launcher.job.activation import find_active_env
from launcher.job.job import Job, collectives_program
from launcher.job.variables import forwarded
from launcher.output.console import dated
from launcher.output.output_streams import tell
from launcher.preflight import load
from launcher.preflight.findings import NOTE, PROBLEM
from launcher.runs.culprits import SHORT, NoVerdictError, find_culprits
from launcher.runs.records import Result
from launcher.runs.run_request import Opener
from launcher.session.signals import Interrupted

RENDEZVOUS_S = 30
RESULTS = Path("files", "node_0", "results.json")  # of rank 0, in the directory of a run's logs


@click.command(
    "test-distributed", cls=Command, params=[
        CONFIG, click.Argument(["processes"], metavar="N", type=PROCESSES), *HOSTS, *REACH,
        CPU.but(help="Use gloo on CPUs.  [default: only if no host has GPU tools]"), PYTHON, *ACTIVATION,
        Option(
            ["--max-size"], metavar="MIB", type=click.IntRange(1, MOST_MIB), heading="Test",
            help="Largest size to measure, in MiB.  [default: 1024, on CPUs 4]",
        ),
        LOAD.but(help="Load all GPUs for T, and name the slow ones.  [default: 10s, on CPUs 1s]", heading="Test"),
        STEP_TIMEOUT,
        *OUTPUT,
    ],
)  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Test N processes on this machine, or on each host if you name hosts.

    Check the results of all collectives and of a DDP step, and measure bandwidth by size; with several hosts, measure
    each pair too. If ranks fail, search for the hosts that cause it.
    """
    hosts, open_transport = choose_hosts(request)
    backend = "gloo on CPUs" if request.cpu else "NCCL on GPUs, or gloo on CPUs if no host has GPUs"
    click.echo(f"test-distributed: {backend}", err=True)
    return run_tests(request, hosts, open_transport)


def choose_hosts(request: Request) -> tuple[tuple[Host, ...], Opener]:
    """Return the hosts named on the command line and what opens their transport; without any, this machine."""
    # Hosts of launcher.toml don't count: without hosts on the command line, only this machine is tested.
    if not any(map(is_on_command_line, ("hosts", "hostfile", "transport"))):
        host = Host(socket.gethostname().split(".")[0], source="this machine")
        return (host,), open_this_machine()
    hosts = read_hosts(request)
    return hosts, choose_opener(request.reach, hosts, python=request.python)


def run_tests(request: Request, hosts: Sequence[Host], open_transport: Opener) -> int:
    """Run on all hosts, find those that fail, print what is slow, and return the exit code."""
    words = ["--max-size", str(request.max_size)] if request.max_size else []
    words += ["--load", f"{request.gpus_under_load_s:g}"] if request.gpus_under_load_s is not None else []
    job = make_job(request, [host.name for host in hosts], *words)
    run_options = runner.read_run_options(request)
    result, folder = runner.run_recorded(job, hosts, open_transport, request, run_options)
    if is_to_bisect(result) and len(hosts) > 1:
        make_part = partial(make_job, request)
        print_culprits(make_part, hosts, open_transport, folder / "bisection", as_json=request.as_json)
    if result.exit_code == 0 and request.gpus_under_load_s != 0:
        return print_loads(folder, hosts, as_json=request.as_json)
    return result.exit_code


def make_job(request: Request, names: Sequence[str], *words: str) -> Job:
    """Return the job whose ranks test and measure; `words` are passed to each rank."""
    # Also of the search, with SHORT.
    limits = () if request.timeout_s is None else ("--timeout", f"{request.timeout_s:g}")
    return Job(
        program=collectives_program(names, *words, *limits),
        nproc=request.processes,
        cpu=request.cpu,
        may_use_cpus=True,
        python=request.python,
        activation=read_activation(request),
        active_env=find_active_env(os.environ),
        env=forwarded(os.environ),
        rendezvous_timeout_s=RENDEZVOUS_S,
        hang_timeout_s=math.inf,  # each rank limits its steps itself
        timeouts=request.timeouts,
    )


def is_to_bisect(result: Result) -> bool:
    """Tell whether ranks failed for a reason that names no host: a lost host is known, and Ctrl-C ends the search."""
    if result.interrupted_by is not None or result.cause is None:
        return False
    return result.cause.failure.kind in (FailureKind.RANK, FailureKind.TORCHRUN)


def print_culprits(
    make_job: Callable[..., Job], hosts: Sequence[Host], open_transport: Opener, folder: Path, *, as_json: bool
) -> None:
    """Run on ever fewer hosts, print how each run ended and then the verdict; exit at a signal."""
    tell(f"test-distributed: looking for the failing hosts; logs in {folder}")
    search = find_culprits(lambda group: make_job(group, *SHORT), hosts, open_transport, folder, _tell_test)
    try:
        verdict = asyncio.run(search)
    except Interrupted as stop:
        tell("test-distributed: stopped, no verdict")
        raise click.exceptions.Exit(EXIT_SIGNAL_BASE + stop.number) from None
    except NoVerdictError as error:
        tell(f"test-distributed: no verdict: {error}")
        return
    if as_json:
        click.echo(json.dumps(dated("verdict", **asdict(verdict))))
        return
    for line in verdict.lines():
        click.echo(f"verdict: {line}")


def _tell_test(what: str, reason: str) -> None:
    tell(f"testing {what}: " + (f"FAILED ({reason})" if reason else "ok"))


def print_loads(folder: Path, hosts: Sequence[Host], *, as_json: bool) -> int:
    """Print what the devices did under load; return the exit code, which is that of a check if one is far too slow."""
    path, names = folder / RESULTS, [host.name for host in hosts]
    try:
        loads = load.read_loads(path.read_bytes(), len(hosts))
    except (OSError, ValueError) as error:
        raise LauncherError(f"{path}: can't be read: {error!r}") from None
    findings = load.check(loads, names)
    if as_json:
        said = {"findings": [finding.as_record() for finding in findings], "loads": load.as_records(loads, names)}
        click.echo(json.dumps(dated("load", **said)))
    for finding in () if as_json else findings:
        label = "" if finding.severity is NOTE else f"{finding.severity.value}: "
        click.echo(f"{label}{finding.one_line}")
    return EXIT_PREFLIGHT if any(finding.severity is PROBLEM for finding in findings) else 0
