"""launch fetch: take the logs of a run that another machine controls."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.help import Command
from launcher.cli.options.table import FILE, option
from launcher.cli.options.values import gather
from launcher.runs.run_list import RemoteRun


@click.command("fetch", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@option(
    "--log-dir",
    metavar="DIR",
    type=FILE,
    default=Path("logs"),
    show_default=True,
    help="Where to put them.",
    heading="Output",
)
@controller_options
@gather
def command(*, run: str | None, log_dir: Path, controller: str | None, ssh_config: Path | None) -> int:
    """Copy the logs of RUN, run.json and the files of its ranks from the host that controls it to DIR/RUN.

    An earlier copy of this run is replaced; if DIR/RUN is anything else, the copy is DIR/RUN.2.  [default: the newest
    run]
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import fetch, find_run
    from launcher.cli.options.sources import is_chosen

    found = find_run(run, controller, ssh_config)
    if isinstance(found, RemoteRun):
        return fetch(found, log_dir, is_chosen=is_chosen("log_dir"))
    tell(f"launch: the logs of run {found.id} are on this machine, in {found.folder}")
    return 0
