"""launch wait: wait until a run has ended, and end like it."""

from __future__ import annotations

import time

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather


@click.command("wait", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@gather
def command(*, run: str | None) -> int:
    """Wait until RUN has ended, print how, and exit with its exit code.  [default: the newest run]"""
    from launcher.cli.log_printer import LOOK_S
    from launcher.cli.run_end import conclude, is_running
    from launcher.cli.state_directory import open_run_list

    found = open_run_list().find(run)
    while is_running(found):
        time.sleep(LOOK_S)
    return conclude(found, prints=True)
