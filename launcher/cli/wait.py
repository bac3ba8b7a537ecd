"""launch wait: wait until a run ends, and exit with its exit code."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.values import gather


@click.command("wait", cls=Command)
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_runs)
@controller_options
@gather
def command(*, runs: tuple[str, ...], controller: str | None, ssh_config: Path | None) -> int:
    """Wait until RUN ends, print its result, and exit with its exit code.  [default: the newest run]

    With several runs, wait for all; the exit code is the first that isn't 0.
    """
    from launcher.cli.find_run import carry_out, find_run
    from launcher.commands.run_actions import wait

    found = [find_run(run, controller, ssh_config) for run in runs or (None,)]
    act = partial(wait, is_one_of_several=len(found) > 1)
    codes = [carry_out(each, act, or_as_seen=True) for each in found]
    return next((code for code in codes if code), 0)
