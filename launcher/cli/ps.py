"""launch ps: the runs that were started on this machine."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather

if TYPE_CHECKING:
    from launcher.runs.run_list import ListedRun

_SHOWN = 20


@click.command("ps", cls=Command)
@click.option("-a", "--all", "all_runs", is_flag=True, help="List all runs, also those that ended long ago.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list to stdout.")
@gather
def command(*, all_runs: bool, as_json: bool) -> int:
    """List the runs that were started on this machine, the newest first.

    The state is looked up: a run whose launch was killed is told from one that runs.
    """
    from launcher.cli.state_directory import open_run_list
    from launcher.commands.ps import as_row

    runs = open_run_list().read()
    newest = runs if all_runs else runs[:_SHOWN]
    shown = [run for run in runs if run in newest or run.is_alive]
    if as_json:
        click.echo(json.dumps([as_row(run, time.time()) for run in shown], indent=2))
        return 0
    if not runs:
        click.echo("launch: no run was started on this machine yet", err=True)
        return 0
    _print_table(shown)
    if len(runs) > len(shown):
        click.echo(f"launch: {len(runs) - len(shown)} older ones: launch ps --all", err=True)
    return 0


def _print_table(runs: list[ListedRun]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from launcher.commands.ps import describe_age, describe_size, describe_state, find_last_line
    from launcher.escapes import one_line

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "state", "age", "where", "nodes"):
        table.add_column(name, no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis")
    for run in runs:
        name = f"{run.id} ({run.controller.name})" if run.controller.name else run.id
        where = "here" if run.is_here else run.controller.host
        record = run.read_record()
        state, age = describe_state(run, record), describe_age(run, time.time())
        last = one_line(find_last_line(run, record), 200)
        table.add_row(name, state, age, where, describe_size(record), last)
    # A file or a pipe has no width, so no line is cut there.
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000).print(table)
