"""launch clean: end and remove what earlier runs left, and nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import HostChoice, Timeouts, TransportOptions, gather
from launcher.cli.options import config_option, host_options, life_options, reach_options
from launcher.cli.selection import choose_opener, read_hosts

if TYPE_CHECKING:
    from launcher.cli.console import Console
    from launcher.commands.clean import Cleaning


@click.command("clean", cls=Command)
@config_option
@host_options
@reach_options
@life_options
@click.option("--python", metavar="PATH", help="Python 3.8 or newer for launch's helper there.")
@click.option("--dry-run", is_flag=True, help="Only say what would be ended and removed.")
@gather
def command(
    *, python: str | None, dry_run: bool, choice: HostChoice, transport: TransportOptions, timeouts: Timeouts
) -> int:
    """End and remove what earlier runs of yours left on the hosts, after saying what it is.

    Left behind is a process with the mark of a run whose supervisor is gone.
    So is the directory of a run that is over: on a host that lost power, nobody removed it.
    A run that goes on is named and left alone, and other users' are never touched.
    Jobs that a run submitted (sbatch, at) aren't part of it and are left alone.
    """
    from launcher.cli.console import Console
    from launcher.cli.runner import make_session, read_terms
    from launcher.commands.clean import clean
    from launcher.errors import EXIT_SIGNAL_BASE
    from launcher.session.signals import Interrupted

    hosts = read_hosts(choice)
    open_transport = choose_opener(transport, hosts, env={}, python=python, silence_s=timeouts.silence_s)
    console = Console(hosts, is_patient=True)

    async def execute() -> Cleaning:
        terms = read_terms(timeouts, time.strftime("clean-%Y%m%d-%H%M%S"), python)
        session = make_session(terms, hosts, open_transport(hosts, console.say), console.outputs(hosts, None), console)
        return await clean(session, console.say, is_dry=dry_run)

    try:
        done = asyncio.run(execute())
        _report(console, done, is_dry=dry_run)
        return done.exit_code
    except Interrupted as interruption:
        return EXIT_SIGNAL_BASE + interruption.number
    finally:
        console.close()


def _report(console: Console, done: Cleaning, *, is_dry: bool) -> None:
    from launcher.commands.clean import kept_lines, verdict
    from launcher.hosts.unreachable import failure_lines
    from launcher.runs import report

    if done.census.left:  # else no host could be asked, which is said below
        console.say(f"launch: {verdict(done, is_dry=is_dry)}")
    for line in [*report.left_lines(done.census), *kept_lines(done.kept), *failure_lines(done.failures)]:
        console.say(line)
