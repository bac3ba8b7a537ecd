"""launch attach: watch a run that is controlled by another process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from launcher.output.log_reader import Choice, RunLogs, ScreenPrinter, follow
from launcher.output.log_writer import find_live_output
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_end import conclude, is_running
from launcher.runs.run_list import ListedRun

_LAST_LINES = 20
_TAIL_BYTES = 1 << 16


def attach(run: ListedRun, streams: OutputStreams, tell: Callable[[str], None]) -> int:
    """Show the last lines of a run and what follows, until it ends; return its exit code.

    Ctrl-C raises KeyboardInterrupt, once all that was read is written.
    """
    title, host = f"run {run.id} ({run.name})" if run.name else f"run {run.id}", run.controller.host
    if run.is_alive is False:
        tell(f"launch: {title}, which {host} controlled, has ended; its last lines:")
    else:
        tell(f"launch: watching {title}, which {host} controls; Ctrl-C leaves it running")
    hosts = run.find_hosts()
    printer = ScreenPrinter(streams, hosts)
    live = find_live_output(run.controller.pid, run.controller.run_id) if run.is_alive and run.is_here else None
    logs = RunLogs(run.folder, hosts, Choice(), _TAIL_BYTES, live)
    try:
        for line in deque(logs.read(), _LAST_LINES):
            printer.print(line)
        printer.flush()
        follow(logs, printer, lambda: is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        raise
    return conclude(run, tell, prints=False)
