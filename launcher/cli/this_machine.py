"""launch singlenode, node and demo: ranks on this machine only, without SSH."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace

import click

from launcher.cli.host_choice import open_this_machine
from launcher.cli.job_request import read_job
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG, current_directory
from launcher.cli.options.request import (
    CLAIMS,
    DETACH,
    DRY_RUN,
    HANGS,
    HOSTS_OF_RUN,
    JOB,
    MASTER_ADDR,
    NO_CHECK,
    NOTIFY,
    OUTPUT,
    RESTARTS,
    WORDS,
    Option,
    Request,
)
from launcher.cli.options.sources import gather
from launcher.cli.repetition import tell_changes
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.activation import find_active_env
from launcher.job.job import DEFAULT_PROGRAM, Job

DEFAULT_MASTER_PORT = 29500  # torchrun's own: every node must name the same
_PORT_HELP = f"Port of node 0, the same on every host.  [default: {DEFAULT_MASTER_PORT}]"


@click.command("singlenode", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *JOB, *HANGS, *RESTARTS, DRY_RUN, NO_CHECK, *CLAIMS, *OUTPUT, DETACH, NOTIFY, WORDS,
])  # fmt: skip
@gather
def singlenode(*, request: Request) -> int:
    """Run SCRIPT on this machine only, without SSH.

    Logs, exit codes and the way to stop it are the same as on several hosts. Without SCRIPT, the built-in trainer runs.
    """
    hosts = [_name_this_machine()]
    job = read_job(request, hosts)
    tell_changes(hosts, job)
    return _run(job, hosts, request)


@click.command("node", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG,
    Option(
        ["--nnodes"], metavar="N", type=HOSTS_OF_RUN, required=True, help="Number of hosts of the run.",
        heading="Processes",
    ),
    Option(
        ["--node-rank"], metavar="R", type=click.IntRange(min=0), required=True,
        help="Number of this host, counted from 0.", heading="Processes",
    ),
    MASTER_ADDR.but(required=True, help="Address of node 0."),
    *(each.but(help=_PORT_HELP) if each.name == "master_port" else each for each in JOB),
    *HANGS, DRY_RUN, NO_CHECK, *CLAIMS, *OUTPUT, WORDS,
])  # fmt: skip
@gather
def node(*, nnodes: int, node_rank: int, request: Request) -> int:
    """Run this machine's share of a run that is started by hand on each host.

    Pass the same --nnodes, --master-addr and --master-port on every host, and the same --gpus or --nproc.
    """
    if not request.master_addr:
        raise UsageError("--master-addr needs an address, got ''")
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: must be below --nnodes {nnodes}")
    hosts = [_name_this_machine()]
    job = read_job(request, hosts)
    job = replace(job, master_port=job.master_port or DEFAULT_MASTER_PORT)
    if nnodes > 1:  # the others may have GPUs
        job = replace(job, may_use_cpus=False)
    return _run(job, hosts, request, (nnodes, node_rank))


@click.command("demo", cls=Command, params=[
    CONFIG,
    Option(
        ["--nodes"], metavar="N", type=click.IntRange(1, 16), default=2, show_default=True,
        help="Number of hosts.", heading="Processes",
    ),
    Option(
        ["--nproc"], metavar="N", type=click.IntRange(1, 16), default=2, show_default=True,
        help="Processes on each host.", heading="Processes",
    ),
    *OUTPUT,
])  # fmt: skip
@gather
def demo(*, nodes: int, nproc: int, request: Request) -> int:
    """Train on several hosts, each of which is this machine, with nothing to set up.

    Each host's processes are started as in a real run, but without SSH.
    """
    folder, environment = str(current_directory()), find_active_env(os.environ)
    job = Job(program=DEFAULT_PROGRAM, nproc=nproc, cpu=True, workdir=folder, active_env=environment)
    hosts = [Host(f"node{number}", address="127.0.0.1", source="demo") for number in range(1, nodes + 1)]
    return _run(job, hosts, request)


def _name_this_machine() -> Host:
    return Host(socket.gethostname().split(".")[0], source="this machine")


def _run(job: Job, hosts: Sequence[Host], request: Request, share: tuple[int, int] | None = None) -> int:
    if request.dry_run:
        from launcher.cli.run import print_dry_run

        return print_dry_run(job, hosts, request, share)
    open_transport = open_this_machine()
    from launcher.cli.runner import read_run_options, run_job

    return run_job(job, hosts, open_transport, request, replace(read_run_options(request), share=share))
