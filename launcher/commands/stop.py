"""launch stop: end a run as Ctrl-C in its terminal would."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence

from launcher.errors import UsageError
from launcher.output.log_reader import LOOK_S
from launcher.runs.run_end import conclude, is_running
from launcher.runs.run_list import ListedRun, RunList, name_runs

_AGAIN_S = 0.5


def find_living(runs: RunList, word: str | None, *, or_stopped: bool = False) -> ListedRun:
    """Return the run to stop; raise UsageError unless there is exactly one that lives, on this machine.

    or_stopped: also one that was stopped, as by another `launch stop` that was typed at the same time.
    """
    found = runs.find(word) if word is not None else _find_only(runs)
    if or_stopped and found.is_alive is False and found.end is not None and found.end.is_stopped:
        return found
    if found.is_alive is False:
        raise UsageError(f"run {found.id} has ended", "see launch ps for those that run")
    if not found.is_here:
        raise UsageError(f"run {found.id} is controlled by {found.controller.host}", "run launch stop there")
    return found


def _find_only(runs: RunList) -> ListedRun:
    living = [each for each in runs.read() if each.is_alive]
    if len(living) != 1:
        raise several_or_none([(run.id, run.name) for run in living], "on this machine")
    return living[0]


def several_or_none(runs: Sequence[tuple[str, str | None]], where: str = "") -> UsageError:
    """Return the error of a `launch stop` that names no run, with the ids and names of those that may be meant."""
    where = f" {where}" if where else ""
    if not runs:
        return UsageError(f"no run is running{where}", "see launch ps")
    return UsageError(f"{len(runs)} runs may be running{where}: {name_runs(runs)}", "name the one to stop")


def stop(run: ListedRun, tell: Callable[[str], None], *, is_now: bool) -> int:
    """Send the signals of Ctrl-C, once, or twice for `is_now`, wait until the run has ended, and print how.

    A second one kills the ranks, so none is sent if this was asked before without `is_now`.
    """
    has_ended = run.is_alive is False
    is_asked = has_ended or run.mark_stop()
    if has_ended:
        tell(f"launch: run {run.id} was stopped before")
    elif is_asked and not is_now:
        tell(f"launch: run {run.id} is being stopped already (--now kills its ranks)")
    signals = (0 if is_asked else 1) + is_now
    sent_at = -math.inf
    while is_running(run):
        if signals and time.monotonic() - sent_at > _AGAIN_S:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(run.controller.pid, run.controller.stop_signal)
            signals, sent_at = signals - 1, time.monotonic()
        time.sleep(LOOK_S)
    conclude(run, tell, prints=True)
    return 0
