"""launch attach: watch a run that is controlled by another process of this machine."""

from __future__ import annotations

import os
import signal
from collections import deque

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather

_LAST_LINES = 20
_TAIL_BYTES = 1 << 16


@click.command("attach", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@gather
def command(*, run: str | None) -> int:
    """Show the last lines of RUN and what follows, until it ends.  [default: the newest run]

    Ctrl-C leaves, and the run continues; Ctrl-\\ shows the Python stacks of its ranks. The exit code is the run's.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.log_printer import ScreenPrinter, find_hosts, follow
    from launcher.cli.run_end import conclude, is_running
    from launcher.cli.state_directory import open_run_list
    from launcher.output.log_reader import Choice, RunLogs

    found = open_run_list().find(run)
    hosts = find_hosts(found.read_record())
    printer = ScreenPrinter(hosts)
    logs = RunLogs(found.folder, hosts, Choice(), _TAIL_BYTES)

    def ask_for_stacks(*_: object) -> None:
        if not found.is_here:
            tell(f"launch: only {found.controller.host} can ask for the stacks")
        elif is_running(found):
            os.kill(found.controller.pid, signal.SIGQUIT)

    signal.signal(signal.SIGQUIT, ask_for_stacks)
    try:
        for line in deque(logs.read(), _LAST_LINES):
            printer.print(line)
        printer.flush()
        follow(logs, printer, lambda: is_running(found))
    except KeyboardInterrupt:
        printer.flush()
        tell(f"launch: left; run {found.id} continues (launch attach, launch stop)")
        return 0
    return conclude(found, prints=False)
