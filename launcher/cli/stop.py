"""launch stop: stop a run as Ctrl-C in its terminal does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.table import option
from launcher.cli.options.values import gather
from launcher.errors import UsageError
from launcher.runs.run_list import ListedRun, RemoteRun, RunList, name_runs


@click.command("stop", cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@option(
    "--now",
    is_flag=True,
    help="Kill the ranks at once, as a second Ctrl-C does: they can't save.",
    heading="Stopping and restarts",
)
@controller_options
@gather
def command(*, run: str | None, now: bool, controller: str | None, ssh_config: Path | None) -> int:
    """Stop RUN as Ctrl-C in its terminal does, and wait for its end.  [default: the only active run]

    The ranks get SIGTERM, so that they can save, and are killed after the run's stop timeout.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import carry_out, find_run
    from launcher.commands.run_actions import stop

    is_unnamed = run is None and controller is None and ssh_config is None
    found = find_only() if is_unnamed else find_run(run, controller, ssh_config)
    try:
        return carry_out(found, partial(stop, is_now=now))
    except KeyboardInterrupt:
        tell(f"launch: run {found.id} is still being stopped (launch wait)")
        return 130


def find_only() -> ListedRun | RemoteRun:
    """Return the run to stop if none is named; raise UsageError unless exactly one may live."""
    from launcher.cli.find_run import find_run, read_rows

    runs = RunList.of_user(os.environ).read_all()
    unseen = {run.id for run in runs if isinstance(run, RemoteRun) and run.row is None}
    if unseen:
        rows = read_rows()[0]
        living = [(row.run, row.name) for row in rows if row.may_live]
        stopped = [(row.run, row.name) for row in rows if row.run in unseen and row.state == "stopped"]
        if not living and len(stopped) == 1:  # another `launch stop` that was typed at the same time was quicker
            living = stopped
    else:
        living = [(run.id, run.name) for run in runs if run.is_alive]
    if len(living) != 1:
        raise several_or_none(living, "" if unseen else "on this machine")
    return find_run(living[0][0])


def several_or_none(runs: Sequence[tuple[str, str | None]], where: str = "") -> UsageError:
    """Return the error of a `launch stop` that names no run, with the ids and names of those that may be meant."""
    where = f" {where}" if where else ""
    if not runs:
        return UsageError(f"no run is running{where}", "see launch ps")
    return UsageError(f"{len(runs)} runs may be running{where}: {name_runs(runs)}", "name the one to stop")
