"""launch demo: the built-in trainer on loopback SSH hosts of this machine."""

from __future__ import annotations

import click

from launcher.cli.host_choice import refuse_ranks_here
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import OUTPUT, Option, Request
from launcher.cli.options.sources import gather
from launcher.cli.options.toml_files import current_directory


@click.command("demo", cls=Command, params=[
    CONFIG,
    Option(
        ["--nodes", "ssh_hosts"], metavar="N", type=click.IntRange(1, 16), default=2, show_default=True,
        help="Number of SSH hosts.", heading="Processes",
    ),
    Option(
        ["--nproc"], metavar="N", type=click.IntRange(1, 16), default=2, show_default=True,
        help="Processes on each host.", heading="Processes",
    ),
    *OUTPUT,
])  # fmt: skip
@gather
def command(*, ssh_hosts: int, nproc: int, request: Request) -> int:
    """Train on loopback SSH hosts of this machine, with nothing to set up.

    A small SSH server runs during the demo. It needs no root, accepts only a key made for this run, listens only on
    loopback, and stops at the end.
    """
    import os

    from launcher.cli.runner import read_run_options, run_job
    from launcher.commands.demo_hosts import demo_hosts
    from launcher.hosts.host import Host
    from launcher.job.activation import find_active_env
    from launcher.job.job import DEFAULT_PROGRAM, Job
    from launcher.transports.settings import TransportSettings
    from launcher.transports.ssh.fabric import FabricTransport

    refuse_ranks_here()
    with demo_hosts(ssh_hosts) as hosts:
        click.echo(f"launch: {ssh_hosts} SSH hosts on loopback: {', '.join(hosts.names)}", err=True)
        job = Job(
            program=DEFAULT_PROGRAM,
            nproc=nproc,
            cpu=True,
            workdir=str(current_directory()),
            active_env=find_active_env(os.environ),
        )
        names = [Host(name, source="demo") for name in hosts.names]
        settings = TransportSettings(ssh_config=hosts.ssh_config)
        return run_job(job, names, lambda _, say: FabricTransport(settings), request, read_run_options(request))
