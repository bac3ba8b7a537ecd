"""launch logs: what a run has written, while it runs or later."""

from __future__ import annotations

import os

import click

from launcher.cli.help import Command
from launcher.cli.option_groups import gather
from launcher.cli.options import AGO, option
from launcher.cli.run_place import RunPlace, controller_options


@click.command("logs", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@controller_options
@option("-f", "--follow", is_flag=True, help="Continue until the run has ended.", heading="Output")
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
    place: RunPlace,
) -> int:  # fmt: skip
    """Print the logs of RUN: an id, its beginning, or a name.  [default: the newest run]

    The lines of all hosts come in the order of time. With --rank, stdout and stderr get what that rank wrote, without
    time and prefix.
    """
    from launcher.cli.run_place import answer, find_run
    from launcher.commands.logs import LogsRequest, print_logs
    from launcher.controller import requests
    from launcher.output.output_streams import find_streams

    which = LogsRequest(follow, node, rank, attempt, since)
    return answer(
        find_run(run, place),
        lambda found: print_logs(found, which, find_streams(os.environ)),
        lambda name: requests.Logs(name, which),
    )
