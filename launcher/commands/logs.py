"""launch logs: what a run has written, while it runs or later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from launcher.errors import UsageError
from launcher.output.log_printer import ExactPrinter, LogPrinter, follow
from launcher.output.log_reader import Choice, RunLogs, find_since
from launcher.output.view import View
from launcher.runs.run_end import is_running
from launcher.runs.run_list import ListedRun


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """Which lines to print; None: all."""

    follows: bool = False  # until the run has ended
    node: int | None = None
    rank: int | None = None
    attempt: int | None = None
    since_s: float | None = None  # only the last seconds


def print_logs(run: ListedRun, request: LogsRequest, view: View) -> int:
    """Print the lines on stdout; with a rank, its bytes on the streams to which it wrote. Return the exit code."""
    if not run.folder.is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    record = run.read_record()
    offset = str(record.get("utc_offset") or "+00:00")
    stamp = None if request.since_s is None else find_since(request.since_s, offset, datetime.now(timezone.utc))
    choice = Choice(request.node, request.rank, request.attempt, stamp)
    logs = RunLogs(run.folder, run.find_hosts(), choice)
    printer = LogPrinter(view) if request.rank is None else ExactPrinter(view)
    try:
        follow(logs, printer, lambda: request.follows and is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        return 130
    return 0
