"""launch stop: stop a run as Ctrl-C in its terminal does, and wait for its end."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

import click

from launcher.cli.answer import conclude, is_running
from launcher.cli.find_run import find_active_run, find_run, run_there
from launcher.cli.options.command import Command, gather
from launcher.cli.options.request import RUN, RUN_PLACE, Option
from launcher.errors import UsageError
from launcher.output.log_reader import LOOK_S
from launcher.output.output_streams import tell
from launcher.runs.run_list import ListedRun, RemoteRun
from launcher.runs.run_state import Activity

_AGAIN_S = 0.5  # between the two signals of --now
_UNHEARD_S = 10.0  # the same, if nothing shows that the first one was heard: they would be one to a controller


@click.command("stop", cls=Command, params=[
    RUN,
    Option(
        ["--now"], is_flag=True, help="Kill the ranks at once, as a second Ctrl-C does: they can't save.",
        heading="Stopping and restarts",
    ),
    *RUN_PLACE,
])  # fmt: skip
@gather
def command(*, run: str | None, now: bool, controller: str | None, ssh_config: Path | None) -> int:
    """Stop RUN as Ctrl-C in its terminal does, and wait for its end.  [default: the only active run]

    The ranks get SIGTERM, so that they can save, and are killed after the run's stop timeout.
    """
    found = find_active_run(controller, ssh_config) if run is None else find_run(run, controller, ssh_config)
    if found is None:
        listed = f"launch ps --hosts {controller}" if controller else "launch ps"
        raise UsageError(f"no run is running on {controller or 'this machine'}", f"see {listed}")
    try:
        return run_there(found) if isinstance(found, RemoteRun) else stop(found, is_now=now)
    except KeyboardInterrupt:
        tell(f"launch: run {found.id} is still being stopped (launch wait)")
        return 130


def stop(run: ListedRun, *, is_now: bool) -> int:
    """Send the signals of Ctrl-C, once, or twice for `is_now`, wait until the run has ended, and print how.

    A second one kills the ranks, so none is sent if this was asked before without `is_now`. Raise UsageError for a run
    that has ended, unless it was stopped, as by another `launch stop` that was typed at the same time.
    """
    has_ended = run.is_alive is False
    if has_ended and (run.end is None or not run.end.is_stopped):
        raise UsageError(f"run {run.id} has ended", "see launch ps for those that run")
    if not has_ended and not run.is_here:
        raise UsageError(f"run {run.id} is controlled by {run.controller.host}", "run launch stop there")
    if is_now:
        tell(f"launch: killing the ranks of run {run.id}, as a second Ctrl-C would: they can't save")
    is_asked = has_ended or run.mark_stop()
    if has_ended:
        tell(f"launch: run {run.id} was stopped before")
    elif is_asked and not is_now:
        tell(f"launch: run {run.id} is being stopped already (--now kills its ranks)")
    signals = (0 if is_asked else 1) + is_now
    sent_at, asked_at, is_told = -math.inf, time.monotonic(), False
    while is_running(run):
        passed_s = time.monotonic() - sent_at
        if not is_told and time.monotonic() - asked_at > _UNHEARD_S and not _is_stopping(run):
            is_told, pid, host = True, run.controller.pid, run.controller.host
            tell(f"launch: run {run.id} doesn't stop: process {pid} on {host}, its launch, doesn't respond")
            tell(f"  fix: kill -CONT {pid} there if it is suspended; or kill -KILL {pid}, and its hosts end the ranks")
        if signals and passed_s > _AGAIN_S and (_is_stopping(run) or passed_s > _UNHEARD_S):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(run.controller.pid, run.controller.stop_signal)
            signals, sent_at = signals - 1, time.monotonic()
        time.sleep(LOOK_S)
    conclude(run, prints=True)
    return 0


def _is_stopping(run: ListedRun) -> bool:
    """Return whether the controller of a run has written down that it stops the ranks."""
    state = run.read_state()
    return state is not None and state.what is Activity.STOPPING
