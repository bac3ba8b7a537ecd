"""launch attach: watch a run that is controlled by another process, here or on another machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.cli.run_place import RemoteRun, RunPlace, controller_options
from launcher.errors import LauncherError
from launcher.runs.run_list import ListedRun


@click.command("attach", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@controller_options
@gather
def command(*, run: str | None, place: RunPlace) -> int:
    """Show the last lines of RUN and what follows, until it ends.  [default: the newest run]

    Ctrl-C leaves, and the run continues; Ctrl-\\ shows the Python stacks of its ranks. The exit code is the run's.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.run_place import answer, fetch, find_run
    from launcher.commands.attach import attach
    from launcher.controller import requests
    from launcher.output.output_streams import find_streams

    found = find_run(run, place)
    signal.signal(signal.SIGQUIT, lambda *_: _ask_for_stacks(found))
    try:
        code = answer(found, lambda run: attach(run, find_streams(os.environ), tell), requests.Attach)
    except KeyboardInterrupt:
        tell(f"launch: left; run {found.id} continues (launch attach, launch stop)")
        return 0
    if isinstance(found, RemoteRun):
        try:
            fetch(found, Path("logs"), is_chosen=False)
        except LauncherError as error:
            tell(f"launch: {error.message}; fix: launch fetch --log-dir DIR")
    return code


def _ask_for_stacks(run: ListedRun | RemoteRun) -> None:
    from launcher.cli.error_lines import tell
    from launcher.cli.run_place import ask
    from launcher.controller import requests
    from launcher.runs.run_end import is_running

    if isinstance(run, RemoteRun):
        ask(run, requests.Stacks(run.id))
    elif not run.is_here:
        tell(f"launch: only {run.controller.host} can ask for the stacks")
    elif is_running(run):
        os.kill(run.controller.pid, signal.SIGQUIT)
