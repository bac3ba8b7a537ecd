"""launch clean: stop and remove what earlier runs left, and nothing else."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import DRY_RUN, ENV, HELPER_PYTHON, HOSTS, LIFE, REACH, Option, Request
from launcher.cli.options.sources import gather

if TYPE_CHECKING:
    from launcher.commands.clean import Cleaning, CodeCleaning
    from launcher.output.console import Console


@click.command("clean", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON,
    ENV.but(help="With --code, look below DIR on the hosts: XDG_CACHE_HOME=DIR.", needs="code"),
    DRY_RUN.but(help="Only list the leftovers."),
    Option(
        ["--code"], is_flag=True, heading="Checks",
        help="Instead, remove the code that --sync sent for runs that are over.",
    ),
])  # fmt: skip
@gather
def command(*, code: bool, request: Request) -> int:
    """List, stop and remove leftovers of your earlier runs on the hosts.

    Leftovers are processes of a run whose helper on the host is gone, and directories of runs that are over, for
    example on a host that lost power. An active run is named and left alone, and other users' runs are never touched.
    Jobs that a run submitted (sbatch, at) aren't part of it and are kept. In a Slurm job, its hosts are the default.
    """
    from launcher.cli.sessions import find_pythons, hold_session, make_settings
    from launcher.commands.clean import clean, clean_code
    from launcher.job.variables import parse_settings
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams

    hosts, is_dry = read_hosts(request), request.dry_run
    variables = parse_settings(request.env, os.environ)
    open_transport = choose_opener(request.reach, hosts, python=request.python)
    console = Console(hosts, find_streams(os.environ), is_patient=True)
    settings = make_settings("clean", request.timeouts, variables, find_pythons(request.python))
    if code:
        act, report = partial(clean_code, is_dry=is_dry), partial(_report_code, console, is_dry=is_dry)
        return hold_session(hosts, open_transport, settings, console, act, report)
    stop, tell = partial(clean, say=console.say, is_dry=is_dry), partial(_report, console, is_dry=is_dry)
    return hold_session(hosts, open_transport, settings, console, stop, tell)


def _report(console: Console, done: Cleaning, *, is_dry: bool) -> int:
    from launcher.commands.clean import kept_lines, verdict
    from launcher.hosts.unreachable import failure_lines
    from launcher.runs import report

    if done.census.left:  # otherwise no host responded, which is said below
        console.say(f"launch: {verdict(done, is_dry=is_dry)}")
    for line in [*report.left_lines(done.census), *kept_lines(done.kept), *failure_lines(done.failures)]:
        console.say(line)
    return done.exit_code


def _report_code(console: Console, done: CodeCleaning, *, is_dry: bool) -> int:
    from launcher.commands.clean import cleaning_lines
    from launcher.hosts.unreachable import failure_lines

    for line in [*cleaning_lines(done, is_dry=is_dry), *failure_lines(done.failures)]:
        console.say(line)
    return done.exit_code
