"""launch logs: what a run has written, while it runs or later."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.cli.options import AGO


@click.command("logs", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue until the run has ended.")
@click.option("--node", metavar="N", type=click.IntRange(min=0), help="Only the host with this node rank.")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="Only this rank, byte for byte.")
@click.option("--attempt", metavar="K", type=click.IntRange(min=0), help="Only restart K; 0 is the first start.")
@click.option("--since", metavar="T", type=AGO, help="Only the last T, such as 10m.")
@gather
def command(
    *, run: str | None, follow: bool, node: int | None, rank: int | None, since: float | None, attempt: int | None
) -> int:
    """Print the logs of RUN: an id, its beginning, or a name.  [default: the newest run]

    The lines of all hosts come in the order of time. With --rank, stdout and stderr get what that rank wrote, without
    time and prefix.
    """
    from launcher.cli import log_printer
    from launcher.cli.run_end import is_running
    from launcher.cli.state_directory import open_run_list
    from launcher.errors import UsageError
    from launcher.output.log_reader import Choice, RunLogs, find_since

    found = open_run_list().find(run)
    if not found.folder.is_dir():
        raise UsageError(f"the logs in {found.folder} were removed", "see launch ps for other runs")
    record = found.read_record()
    offset = str(record.get("utc_offset") or "+00:00")
    stamp = None if since is None else find_since(since, offset, datetime.now(timezone.utc))
    logs = RunLogs(found.folder, log_printer.find_hosts(record), Choice(node, rank, attempt, stamp))
    printer = log_printer.LogPrinter() if rank is None else log_printer.ExactPrinter()
    try:
        log_printer.follow(logs, printer, lambda: follow and is_running(found))
    except KeyboardInterrupt:
        printer.flush()
        return 130
    return 0
