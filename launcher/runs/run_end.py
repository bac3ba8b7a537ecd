"""How a run ended that another process controlled: its exit code, and the last messages about it."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, UsageError
from launcher.output.log_reader import LogFile
from launcher.output.log_writer import TRANSCRIPT
from launcher.runs.run_list import ListedRun

_SIGKILL = 9
_FAILED = re.compile("launch: .*FAILED after ")
_ENDED = re.compile("launch: (finished in|stopped by) ")


def is_running(run: ListedRun) -> bool:
    """Return whether a run still lives; raise UsageError if only another machine can tell."""
    now = run.look()
    if now is not None and now.is_alive is None:
        host = now.controller.host
        raise UsageError(f"only {host} can tell whether run {now.id} still runs", f"use launch on {host}")
    return now is not None and bool(now.is_alive)


def conclude(run: ListedRun, tell: Callable[[str], None], *, prints: bool) -> int:
    """Return the exit code of a run that has ended; prints: also its last messages."""
    now = run.look()
    if now is None:
        tell(f"launch: run {run.id} was never started; its launch has said why")
        return EXIT_FAILED
    if now.end is None:
        tell(f"launch: run {now.id} has no result: its launch was killed, and its hosts end it within --silence")
        return EXIT_SIGNAL_BASE + _SIGKILL
    if prints:
        for line in _find_end(now):
            tell(line)
    return now.end.exit_code


def _find_end(run: ListedRun) -> list[str]:
    """Return the block about the failure, or how a run ended that succeeded or was stopped, and what follows that."""
    lines = [line.text.decode("utf-8", "replace") for line in LogFile(run.folder / TRANSCRIPT, ()).read()]
    has_failed = run.end is not None and run.end.exit_code != 0 and not run.end.is_stopped
    begin = _FAILED if has_failed else _ENDED
    begins = [index for index, line in enumerate(lines) if begin.match(line)]
    return lines[begins[-1] :] if begins else lines[-1:]
