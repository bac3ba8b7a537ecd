"""launch attach: watch a run that is controlled by another process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from launcher.output.log_printer import ScreenPrinter, follow
from launcher.output.log_reader import Choice, RunLogs
from launcher.output.view import View
from launcher.runs.run_end import conclude, is_running
from launcher.runs.run_list import ListedRun

_LAST_LINES = 20
_TAIL_BYTES = 1 << 16


def attach(run: ListedRun, view: View, tell: Callable[[str], None]) -> int:
    """Show the last lines of a run and what follows, until it ends; return its exit code.

    Ctrl-C raises KeyboardInterrupt, once all that was read is written.
    """
    hosts = run.find_hosts()
    printer = ScreenPrinter(view, hosts)
    logs = RunLogs(run.folder, hosts, Choice(), _TAIL_BYTES)
    try:
        for line in deque(logs.read(), _LAST_LINES):
            printer.print(line)
        printer.flush()
        follow(logs, printer, lambda: is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        raise
    return conclude(run, tell, prints=False)
