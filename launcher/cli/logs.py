"""launch logs: print the output of a run, while it runs or later."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click

from launcher.cli.answer import is_running
from launcher.cli.find_run import find_run, own_streams, run_there
from launcher.cli.options.command import Command, gather
from launcher.cli.options.request import AGO, RUN, RUN_PLACE, Option
from launcher.errors import EXIT_FAILED
from launcher.output.log_reader import Choice, LogPrinter, RunLogs, as_logged, as_written, find_since
from launcher.output.log_reader import follow as keep_printing
from launcher.output.output_streams import tell
from launcher.runs.run_list import RemoteRun

_NUMBER = click.IntRange(min=0)


@click.command("logs", cls=Command, params=[
    RUN, *RUN_PLACE,
    Option(["-f", "--follow"], is_flag=True, help="Continue until the run ends.", heading="Output"),
    Option(["--node"], metavar="N", type=_NUMBER, help="Only the host with this node rank.", heading="Output"),
    Option(["--rank"], metavar="R", type=_NUMBER, help="Only this rank, byte for byte.", heading="Output"),
    Option(["--attempt"], metavar="K", type=_NUMBER, help="Only restart K; 0 is the first start.", heading="Output"),
    Option(["--since"], metavar="T", type=AGO, help="Only the last T, such as 10m.", heading="Output"),
])  # fmt: skip
@gather
def command(
    *, run: str | None, follow: bool, node: int | None, rank: int | None, since: float | None, attempt: int | None,
    controller: str | None, ssh_config: Path | None,
) -> int:  # fmt: skip
    """Print the logs of RUN: an ID, its beginning, or a name.  [default: the newest run]

    Lines of all hosts are sorted by time. With --rank, stdout and stderr get exactly the bytes of that rank,
    without time and prefix.
    """
    found = find_run(run, controller, ssh_config)
    if isinstance(found, RemoteRun):
        return run_there(found, is_of_a_run=True)
    folder = found.find_folder()
    record = found.read_record()
    stamp = None if since is None else find_since(since, record.utc_offset, datetime.now(timezone.utc))
    logs = RunLogs(folder, record.all_hosts, Choice(node, rank, attempt, stamp))
    printer = LogPrinter(own_streams(), as_logged if rank is None else as_written)
    try:
        keep_printing(logs, printer, lambda: follow and is_running(found))
    except KeyboardInterrupt:
        printer.flush()
        return 130
    chosen = {"node": node, "rank": rank, "attempt": attempt}
    if printer.has_printed or not (words := [f"--{name} {it}" for name, it in chosen.items() if it is not None]):
        return 0
    tell(f"launch: run {found.id} has no lines of {' '.join(words)}")
    return EXIT_FAILED
