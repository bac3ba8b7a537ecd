"""launch [OPTIONS] [SCRIPT [ARGS]...]: the default command."""

from __future__ import annotations

from collections.abc import Sequence

import click

from launcher.cli.job_request import read_job
from launcher.cli.option_groups import HostChoice, JobRequest, OutputOptions, TransportOptions, gather
from launcher.cli.option_sources import show_sources
from launcher.cli.options import (
    check_options,
    config_option,
    hang_options,
    host_options,
    job_options,
    output_options,
    reach_options,
)
from launcher.cli.selection import choose_opener, choose_way, read_hosts
from launcher.hosts.host import Host
from launcher.job.job import Job


@click.command("run", context_settings={"allow_interspersed_args": False})
@config_option
@host_options
@job_options
@click.option("--master-addr", metavar="ADDR", help="Default: addr= of the first host, else the one SSH reaches.")
@reach_options
@hang_options
@check_options
@output_options
@click.option("--dry-run", is_flag=True, help="Print one line per node and contact nobody.")
@click.option("--check", is_flag=True, help="With --dry-run: ask the nodes, and print exact lines.")
@click.argument("words", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED)
@gather
def command(
    *, words: tuple[str, ...], dry_run: bool, check: bool, no_check: bool,
    choice: HostChoice, request: JobRequest, transport: TransportOptions, output: OutputOptions,
) -> int:  # fmt: skip
    """Run SCRIPT on every host under torchrun, one process per GPU.

    Everything after SCRIPT goes to it untouched. Without SCRIPT the built-in trainer runs.
    """
    from launcher.errors import UsageError

    hosts = read_hosts(choice)
    job = read_job(request, words, hosts)
    if output.verbose:
        show_sources()
    if dry_run and not check:
        choose_way(transport, hosts, job.env)
        return print_dry_run(job, hosts)
    if check and not dry_run:
        raise UsageError("--check goes with --dry-run")
    open_transport = choose_opener(transport, hosts, env=job.env, python=job.python, silence_s=job.silence_s)
    from launcher.cli.runner import run_job
    from launcher.runs.run import RunOptions

    run_options = RunOptions(is_dry=dry_run, is_verbose=output.verbose, with_checks=not no_check)
    return run_job(job, hosts, open_transport, output, run_options)


def print_dry_run(job: Job, hosts: Sequence[Host], share: tuple[int, int] | None = None) -> int:
    """Print what would run where, with named placeholders for what only the nodes can tell."""
    from launcher.job.plan import build_plan, placeholder_facts
    from launcher.runs.report import plan_lines

    plan = build_plan(job, hosts, [placeholder_facts(job, host) for host in hosts], share)
    for line in plan_lines(plan):
        click.echo(line)
    return 0
