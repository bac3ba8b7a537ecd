"""launch logs: print the output of a run, while it runs or later."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.table import AGO, option
from launcher.cli.options.values import gather


@click.command("logs", cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@controller_options
@option("-f", "--follow", is_flag=True, help="Continue until the run ends.", heading="Output")
@option("--node", metavar="N", type=click.IntRange(min=0), help="Only the host with this node rank.", heading="Output")
@option("--rank", metavar="R", type=click.IntRange(min=0), help="Only this rank, byte for byte.", heading="Output")
@option(
    "--attempt",
    metavar="K",
    type=click.IntRange(min=0),
    help="Only restart K; 0 is the first start.",
    heading="Output",
)
@option("--since", metavar="T", type=AGO, help="Only the last T, such as 10m.", heading="Output")
@gather
def command(
    *, run: str | None, follow: bool, node: int | None, rank: int | None, since: float | None, attempt: int | None,
    controller: str | None, ssh_config: Path | None,
) -> int:  # fmt: skip
    """Print the logs of RUN: an ID, its beginning, or a name.  [default: the newest run]

    Lines of all hosts are sorted by time. With --rank, stdout and stderr get exactly the bytes of that rank,
    without time and prefix.
    """
    from launcher.cli.find_run import carry_out, find_run
    from launcher.commands.run_actions import LogsRequest, print_logs

    request = LogsRequest(follow, node, rank, attempt, since)
    found, act = find_run(run, controller, ssh_config), partial(print_logs, request=request)
    return carry_out(found, act, is_of_a_run=True, or_of_copy=True)
