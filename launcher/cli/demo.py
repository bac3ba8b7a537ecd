"""launch demo: the built-in trainer on several hosts, each of which is this machine."""

from __future__ import annotations

import click

from launcher.cli.host_choice import open_this_machine
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG, current_directory
from launcher.cli.options.request import OUTPUT, Option, Request
from launcher.cli.options.sources import gather


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
    import os

    from launcher.cli.runner import read_run_options, run_job
    from launcher.hosts.host import Host
    from launcher.job.activation import find_active_env
    from launcher.job.job import DEFAULT_PROGRAM, Job

    open_transport = open_this_machine()
    job = Job(
        program=DEFAULT_PROGRAM,
        nproc=nproc,
        cpu=True,
        workdir=str(current_directory()),
        active_env=find_active_env(os.environ),
    )
    hosts = [Host(f"node{number}", address="127.0.0.1", source="demo") for number in range(1, nodes + 1)]
    return run_job(job, hosts, open_transport, request, read_run_options(request))
