"""launch stop: end a run as Ctrl-C in its terminal would."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.runs.run_list import ListedRun

_AGAIN_S = 0.5


@click.command("stop", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--now", is_flag=True, help="Kill the ranks at once: they can't save.")
@gather
def command(*, run: str | None, now: bool) -> int:
    """End RUN as Ctrl-C in its terminal would, and wait for that.  [default: the only run that runs]

    Its ranks get SIGTERM, so that they can save, and are killed after --stop-timeout.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.run_end import conclude

    found = find_living(run)
    if not found.is_here:
        raise UsageError(f"run {found.id} is controlled by {found.controller.host}", "run launch stop there")
    try:
        end_run(found, is_now=now)
    except KeyboardInterrupt:
        tell(f"launch: run {found.id} is still being stopped (launch wait)")
        return 130
    conclude(found, prints=True)
    return 0


def find_living(word: str | None) -> ListedRun:
    """Return the run to stop; raise UsageError unless there is exactly one that lives."""
    from launcher.cli.state_directory import open_run_list

    runs = open_run_list()
    if word is None:
        living = [each for each in runs.read() if each.is_alive]
        if len(living) != 1:
            what = f"{len(living)} runs are running" if living else "no run is running"
            raise UsageError(f"{what} on this machine", "name one of launch ps" if living else "see launch ps")
        return living[0]
    found = runs.find(word)
    if found.is_alive is False:
        raise UsageError(f"run {found.id} has ended", "see launch ps for those that run")
    return found


def end_run(run: ListedRun, *, is_now: bool) -> None:
    """Send the signals of Ctrl-C, once, or twice for `is_now`, and wait until the run has ended.

    A second one kills the ranks, so none is sent if this was asked before without `is_now`.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.log_printer import LOOK_S
    from launcher.cli.run_end import is_running

    is_asked = run.mark_stop()
    if is_asked and not is_now:
        tell(f"launch: run {run.id} is being stopped already (--now kills its ranks)")
    signals = (0 if is_asked else 1) + is_now
    sent_at = -math.inf
    while is_running(run):
        if signals and time.monotonic() - sent_at > _AGAIN_S:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(run.controller.pid, run.controller.stop_signal)
            signals, sent_at = signals - 1, time.monotonic()
        time.sleep(LOOK_S)
