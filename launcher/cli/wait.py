"""launch wait: wait until a run has ended, and end like it."""

from __future__ import annotations

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.cli.run_place import RunPlace, controller_options


@click.command("wait", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@controller_options
@gather
def command(*, run: str | None, place: RunPlace) -> int:
    """Wait until RUN has ended, print how, and exit with its exit code.  [default: the newest run]"""
    from launcher.cli.error_lines import tell
    from launcher.cli.run_place import answer, find_run
    from launcher.commands.wait import wait
    from launcher.controller import requests

    return answer(find_run(run, place), lambda found: wait(found, tell), requests.Wait)
