"""launch ps: the runs that were started on this machine, or those that hosts control."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import click

from launcher.cli.find_run import find_run, read_record, read_rows, read_rows_of, read_state
from launcher.cli.options.command import Command, gather
from launcher.cli.options.completion import complete_hosts, complete_runs
from launcher.cli.options.request import AS_JSON, RUN_PLACE, Option
from launcher.errors import EXIT_UNREACHABLE, UsageError
from launcher.escapes import one_line
from launcher.output.output_streams import tell
from launcher.runs.run_list import ListedRun, RunList, UnknownRunError
from launcher.runs.run_rows import RunRow
from launcher.runs.run_state import fold_briefly
from launcher.wording import age, lay_out

_SHOWN = 20
_MOST_CELL = 60
_LEAST_COLUMNS = 10  # for the last line


@click.command("ps", cls=Command, params=[
    AS_JSON.but(help="Print one JSON list to stdout."),
    Option(
        ["-a", "--all", "all_runs"], is_flag=True, heading="Output",
        help="List all runs.  [default: the active ones and the newest 20]",
    ),
    Option(
        ["--hosts"], metavar="LIST", help="List the runs that these hosts control, wherever they were started.",
        shell_complete=complete_hosts, heading="Hosts",
    ),
    RUN_PLACE[1].but(help="With --hosts, read FILE instead of ~/.ssh/config.", needs="hosts"),
    Option(
        ["--forget"], metavar="RUN", shell_complete=complete_runs, heading="Output",
        help="Remove RUN from the list, if it has ended or its controller host doesn't know it.",
    ),
])  # fmt: skip
@gather
def command(*, all_runs: bool, hosts: str | None, ssh_config: Path | None, forget: str | None, as_json: bool) -> int:
    """List the runs that were started on this machine, the newest first.

    The state is looked up, on the controller hosts too: a run whose launch was killed isn't listed as running.
    """
    if forget is not None:
        return _forget(forget)
    rows, unreached = read_rows() if hosts is None else read_rows_of(hosts, ssh_config)
    shown = [row for index, row in enumerate(rows) if all_runs or index < _SHOWN or row.exit_code is None]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in shown], indent=2))
    elif shown:
        _print_table(shown)
    elif not rows and not unreached:
        where = "on this machine" if hosts is None else f"by {hosts}"
        click.echo(f"launch: no run was {'started' if hosts is None else 'controlled'} {where} yet", err=True)
    for line in unreached:
        tell(line)
    older = len(rows) - len(shown)
    if older > 0 and not as_json:
        click.echo(f"launch: {older} older ones: launch ps --all", err=True)
    return EXIT_UNREACHABLE if unreached and hosts is not None else 0


def _forget(word: str) -> int:
    """Remove a run from the list of this machine; raise UsageError if it may live, exit with 69 if its host is away."""
    found = find_run(word)
    row = read_state(found)
    if row.state in ("starting", "running"):
        raise UsageError(f"run {found.id} is {row.state}", f"launch stop {found.id}")
    if row.state == "unknown":
        if isinstance(found, ListedRun):
            host = found.controller.host
            raise UsageError(
                f"only {host} knows whether run {found.id} has ended", f"on {host}, use launch ps --forget {found.id}"
            )
        with contextlib.suppress(UnknownRunError):
            read_record(found)
            raise UsageError(f"run {found.id} may continue: {row.last_line}", f"launch stop {found.id}")
    RunList.of_user(os.environ).forget(found)
    tell(f"launch: run {found.id} is listed no more; its logs stay where they are")
    return 0


def _print_table(rows: list[RunRow]) -> None:
    """Print the runs; on a terminal the last line of each is cut, and nothing that is typed again."""
    own = [("run", "name", "state", "age", "where", "nodes"), *map(_describe, rows)]
    lines = [f"{line}  " for line in lay_out([[*cells, "|"] for cells in own])]
    width = len(lines[0]) - len("|  ")
    room = max(shutil.get_terminal_size().columns - width, _LEAST_COLUMNS) if sys.stdout.isatty() else 200
    for line, last in zip(lines, ["last line", *(row.last_line for row in rows)], strict=True):
        click.echo(f"{line[:width]}{one_line(last, room - 3)}".rstrip())  # it ends in ... if it was cut
    for row in rows:
        if row.state == "unknown" and len(row.last_line) > room - 3:  # it says what is known, and was cut
            click.echo(f"launch: run {row.run}: {one_line(row.last_line, 200)}", err=True)


def _describe(row: RunRow) -> list[str]:
    """Return the cells of a row but the last one; a host may have sent it."""
    place = "here" if row.controller == socket.gethostname() else str(row.controller)
    own = (row.run, row.name or "", row.describe(), age(row.age_s), place)
    return [one_line(cell, _MOST_CELL) for cell in (*own, _describe_size(row))]


def _describe_size(row: RunRow) -> str:
    """Return `2 x 8 gpu[1-2]` for two hosts with eight ranks each; `-` before its ranks started."""
    sizes = row.nodes
    if not sizes:
        return "-"
    hosts = fold_briefly([host for host in row.hosts or () if host])
    return f"{len(sizes)} x {'+'.join(str(size) for size in dict.fromkeys(sizes))} {hosts}".rstrip()
