"""test-distributed N: do N processes (per host) reach each other, are the results right, and how fast is it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import HostChoice, OutputOptions, PythonEnvironment, Timeouts, TransportOptions, gather
from launcher.cli.option_sources import find_reach, is_on_command_line
from launcher.cli.options import FILE, activation_options, config_option, host_options, output_options, reach_options
from launcher.cli.selection import choose_opener, open_this_machine, read_hosts, refuse_without_hosts

if TYPE_CHECKING:
    from launcher.cli.runner import Opener
    from launcher.hosts.host import Host
    from launcher.job.job import Job

RENDEZVOUS_S = 30


@dataclass(frozen=True, slots=True)
class CollectivesTest:
    """What is measured, with which Python, and how long it may take to get there."""

    processes: int  # on each host
    cpu: bool
    max_size: int | None  # MiB
    plot: Path | None  # the picture to draw
    environment: PythonEnvironment
    timeouts: Timeouts


@click.command("test-distributed", cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.argument("processes", metavar="N", type=click.IntRange(min=1))
@host_options
@reach_options
@click.option("--cpu", is_flag=True, help="Use gloo on CPUs; default if no host has GPU tools.")
@click.option("--python", metavar="PATH", help="Python on the hosts; default: the first with torch.")
@activation_options
@click.option(
    "--max-size", metavar="MIB", type=click.IntRange(min=1), help="Largest size to measure; default: 64, on CPUs 4."
)
@click.option("--plot", metavar="FILE", type=FILE, help="Draw the pairs of hosts as FILE.png or FILE.svg.")
@output_options
@gather
def command(*, test: CollectivesTest, choice: HostChoice, transport: TransportOptions, output: OutputOptions) -> int:
    """Check and measure N processes, per host if hosts are given.

    All collectives with checked results, a DDP step, and bandwidth by size.
    Several hosts are measured in pairs as well; where they fail, runs on fewer find out which of them do.
    """
    hosts, open_transport = choose_hosts(test, choice, transport)
    refuse_plot(test.plot, hosts)
    backend = "gloo on CPUs" if test.cpu else "NCCL on GPUs, or gloo on CPUs if no host has GPUs"
    click.echo(f"test-distributed: {backend}", err=True)
    return run_tests(test, hosts, open_transport, output)


def choose_hosts(
    test: CollectivesTest, choice: HostChoice, transport: TransportOptions
) -> tuple[tuple[Host, ...], Opener]:
    """Return the hosts that were typed, and what opens the way to them; without any, this machine."""
    import os
    import socket

    from launcher.hosts.host import Host
    from launcher.job.variables import forwarded

    # Hosts of launcher.toml don't count: without any on its own line it looks at this machine alone.
    if not any(map(is_on_command_line, ("hosts", "hostfile", "transport"))):
        refuse_without_hosts()
        host = Host(socket.gethostname().split(".")[0], source="this machine")
        return (host,), open_this_machine()
    hosts = read_hosts(choice)
    python, silence_s = test.environment.python, test.timeouts.silence_s
    return hosts, choose_opener(transport, hosts, env=forwarded(os.environ), python=python, silence_s=silence_s)


def refuse_plot(path: Path | None, hosts: Sequence[Host]) -> None:
    """Raise UsageError, before anything runs, for a picture that could not be drawn after it."""
    from launcher.commands.plots import refuse_picture
    from launcher.errors import UsageError

    if path is None:
        return
    refuse_picture(path)
    if len(hosts) < 2:
        raise UsageError("--plot draws pairs of hosts, and there is one host", "name several with --hosts")


def run_tests(test: CollectivesTest, hosts: Sequence[Host], open_transport: Opener, output: OutputOptions) -> int:
    """Run on all hosts; find out which of them fail, and draw what they measured. Return the exit code of the run."""
    from launcher.cli import runner
    from launcher.cli.bisection import find_culprits, is_to_bisect

    size = ["--max-size", str(test.max_size)] if test.max_size else []
    job = make_job(test, [host.name for host in hosts], *size)
    run_options = runner.read_run_options(output)
    result, folder = runner.run_recorded(job, hosts, open_transport, output, run_options)
    if is_to_bisect(result) and len(hosts) > 1:
        make_part = partial(make_job, test)
        find_culprits(make_part, hosts, open_transport, folder / "bisection", as_json=output.as_json)
    if test.plot is not None:
        draw(folder / "files" / "node_0" / "results.json", test.plot, len(hosts))
    return result.exit_code


def make_job(test: CollectivesTest, names: Sequence[str], *words: str) -> Job:
    """Return the job whose ranks check and measure; `words` go to each rank."""
    import os

    from launcher.cli.job_request import read_activation
    from launcher.job.activation import find_active_env
    from launcher.job.job import COLLECTIVES_MODULE, Job, Program, ProgramKind
    from launcher.job.variables import forwarded

    return Job(
        program=Program(ProgramKind.BUILTIN, COLLECTIVES_MODULE, ("--names", ",".join(names), *words)),
        nproc=test.processes,
        cpu=test.cpu,
        may_use_cpus=True,
        python=test.environment.python,
        activation=read_activation(test.environment, None),
        active_env=find_active_env(os.environ),
        reach=tuple(find_reach()),
        env=forwarded(os.environ),
        rendezvous_timeout_s=RENDEZVOUS_S,
        connect_timeout_s=test.timeouts.connect_timeout_s,
    )


def draw(results: Path, picture: Path, hosts: int) -> None:
    """Draw what rank 0 has brought home, if the run came so far; without a picture the run is still what it is."""
    from launcher.commands.plots import draw_pairs, read_pairs
    from launcher.errors import LauncherError

    if not results.exists():
        click.echo("test-distributed: no picture, the run did not come to the pairs of hosts", err=True)
        return
    try:
        draw_pairs(read_pairs(results, hosts), picture)
    except (LauncherError, OSError) as error:
        click.echo(f"test-distributed: no picture: {error}", err=True)
        return
    click.echo(f"test-distributed: drawn in {picture}", err=True)
