"""launch demo: a run with nothing to set up, on several hosts, each of which is this machine."""

from __future__ import annotations

import os

import click

from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG, current_directory
from launcher.cli.options.request import OUTPUT, Option, Request
from launcher.hosts.host import Host
from launcher.job.activation import find_active_env
from launcher.job.job import DEFAULT_PROGRAM, Job


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
def command(*, nodes: int, nproc: int, request: Request) -> int:
    """Train on several hosts, each of which is this machine, with nothing to set up.

    Each host's processes are started as in a real run, but without SSH.
    """
    from launcher.cli.runner import run_here  # which a Tab and --help can do without

    folder, environment = str(current_directory()), find_active_env(os.environ)
    job = Job(program=DEFAULT_PROGRAM, nproc=nproc, cpu=True, workdir=folder, active_env=environment)
    hosts = [Host(f"node{number}", address="127.0.0.1", source="demo") for number in range(1, nodes + 1)]
    return run_here(job, hosts, request)
