"""test-distributed N: do N processes (per host) reach each other, and do collectives give the right results?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import click

from launcher.cli.options import activation_options, host_options, output_options, read_hosts, ssh_options


@click.command("test-distributed")
@click.argument("processes", metavar="N", type=click.IntRange(min=1))
@host_options
@ssh_options
@click.option("--cpu", is_flag=True, help="Use gloo on CPUs; the default on a machine without nvidia-smi.")
@click.option("--python", metavar="PATH", help="Python on the hosts; default: the first that has torch.")
@activation_options
@output_options
def command(processes: int, cpu: bool, python: str | None, **options: Any) -> int:
    """Start N processes, per host if hosts are given, and check the collectives among them."""
    import socket

    from launcher.cli.options import is_on_command_line, read_activation, read_env
    from launcher.cli.run import make_transport
    from launcher.cli.running import run_job
    from launcher.hosts import Host
    from launcher.job import COLLECTIVES_MODULE, Job, Program, ProgramKind
    from launcher.transports.base import Transport
    from launcher.transports.local import LocalTransport

    # Hosts of launcher.toml don't count: without any on its own line it looks at this machine alone.
    has_hosts = is_on_command_line("hosts") or is_on_command_line("hostfile")

    def open_transport(say: Callable[[str], None]) -> Transport:
        return make_transport(options, say) if has_hosts else LocalTransport()

    hosts = read_hosts(options) if has_hosts else (Host(socket.gethostname().split(".")[0], source="this machine"),)
    on_cpu = cpu or (not has_hosts and shutil.which("nvidia-smi") is None)
    click.echo(f"test-distributed: {'gloo on CPUs' if on_cpu else 'NCCL on GPUs'}", err=True)
    job = Job(
        program=Program(ProgramKind.BUILTIN, COLLECTIVES_MODULE),
        nproc=processes,
        cpu=on_cpu,
        python=python,
        activation=read_activation({"python": python, **options}),
        env=read_env({"env": (), "env_file": ()}),
        connect_timeout_s=options["connect_timeout"],
    )
    return run_job(job, hosts, open_transport, options)
