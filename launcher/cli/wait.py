"""launch wait: wait until a run ends, and exit with its exit code."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.help import Command
from launcher.cli.options.values import gather


@click.command("wait", cls=Command)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@controller_options
@gather
def command(*, runs: tuple[str, ...], controller: str | None, ssh_config: Path | None) -> int:
    """Wait until RUN ends, print its result, and exit with its exit code.  [default: the newest run]

    With several runs, wait for all; the exit code is the first that isn't 0.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import carry_out, find_run
    from launcher.commands.run_actions import wait

    found = [find_run(run, controller, ssh_config) for run in runs or (None,)]
    codes = []
    for each in found:
        if len(found) > 1:
            tell(f"launch: waiting for run {each.id}")
        codes.append(carry_out(each, wait, or_as_seen=True))
    return next((code for code in codes if code), 0)
