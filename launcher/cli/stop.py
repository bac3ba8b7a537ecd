"""launch stop: end a run as Ctrl-C in its terminal would."""

from __future__ import annotations

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.cli.options import option
from launcher.cli.run_place import RemoteRun, RunPlace, controller_options
from launcher.runs.run_list import ListedRun


@click.command("stop", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@option(
    "--now",
    is_flag=True,
    help="Kill the ranks at once, as a second Ctrl-C would: they can't save.",
    heading="Stopping and restarts",
)
@controller_options
@gather
def command(*, run: str | None, now: bool, place: RunPlace) -> int:
    """End RUN as Ctrl-C in its terminal would, and wait for that.  [default: the only run that runs]

    Its ranks get SIGTERM, so that they can save, and are killed after --stop-timeout.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.run_place import answer
    from launcher.commands.stop import stop
    from launcher.controller import requests

    found = find_living(run, place)
    if now:
        tell(f"launch: killing the ranks of run {found.id}, as a second Ctrl-C would: they can't save")
    try:
        return answer(found, lambda run: stop(run, tell, is_now=now), lambda name: requests.End(name, now))
    except KeyboardInterrupt:
        tell(f"launch: run {found.id} is still being stopped (launch wait)")
        return 130


def find_living(word: str | None, place: RunPlace) -> ListedRun | RemoteRun:
    """Return the run to stop; raise UsageError unless there is exactly one that may live."""
    from launcher.cli.run_place import find_run
    from launcher.cli.run_rows import may_live, read_rows, read_runs
    from launcher.cli.state_directory import open_run_list
    from launcher.commands import stop

    if word is None and place.controller is None:
        unseen = {run.id for run in read_runs()[0] if run.row is None}
        if not unseen:
            return stop.find_living(open_run_list(), None)
        rows = read_rows()[0]
        living = [(row["run"], row["name"]) for row in rows if may_live(row)]
        stopped = [(row["run"], row["name"]) for row in rows if row["run"] in unseen and row["state"] == "stopped"]
        if not living and len(stopped) == 1:  # another `launch stop` that was typed at the same time was quicker
            living = stopped
        if len(living) != 1:
            raise stop.several_or_none(living)
        word = living[0][0]
    found = find_run(word, place)
    if isinstance(found, RemoteRun):
        return found
    return stop.find_living(open_run_list(), found.id, or_stopped=True)
