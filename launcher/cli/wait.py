"""launch wait: wait for the end of runs, and exit with their exit code."""

from __future__ import annotations

import time
from pathlib import Path

import click

from launcher.cli.answer import conclude, find_doing, is_running
from launcher.cli.find_run import find_run, own_streams, run_there
from launcher.cli.options.command import Command, gather
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.request import RUN_PLACE
from launcher.output.lines import STDERR
from launcher.output.log_reader import LOOK_S
from launcher.output.output_streams import tell
from launcher.runs.run_list import ListedRun, RemoteRun, UnknownRunError


@click.command("wait", cls=Command, params=[
    click.Argument(["runs"], metavar="[RUN]...", nargs=-1, shell_complete=complete_runs), *RUN_PLACE,
])  # fmt: skip
@gather
def command(*, runs: tuple[str, ...], controller: str | None, ssh_config: Path | None) -> int:
    """Wait until RUN ends, print its result, and exit with its exit code.  [default: the newest run]

    With several runs, wait for all; the exit code is the first that isn't 0.
    """
    found = [find_run(run, controller, ssh_config) for run in runs or (None,)]
    codes = [_await_end(run) for run in found]
    return next((code for code in codes if code), 0)


def _await_end(run: ListedRun | RemoteRun) -> int:
    """Wait for the end of a run, print it, and return its exit code: that which launch ps saw, if nobody knows more."""
    if isinstance(run, RemoteRun):
        try:
            return run_there(run)
        except UnknownRunError as error:
            if run.row is None or run.row.exit_code is None:
                raise
            tell(f"launch: {error.message}")
            return int(run.row.exit_code)
    if run.is_alive and STDERR in own_streams().terminals:
        doing = find_doing(run)
        tell(f"launch: waiting for run {run.id}{f', which is {doing}' if doing else ''}")
    while is_running(run):
        time.sleep(LOOK_S)
    return conclude(run, prints=True)
