"""launch fetch: copy the logs of a run from its controller host."""

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
    help="Directory for the copy.",
    heading="Output",
)
@controller_options
@gather
def command(*, run: str | None, log_dir: Path, controller: str | None, ssh_config: Path | None) -> int:
    """Copy the logs, run.json and the ranks' files of RUN from its controller host.  [default: the newest run]

    The copy is DIR/RUN, with DIR from --log-dir. An earlier copy of this run is replaced; if DIR/RUN is anything else,
    the copy is DIR/RUN.2.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import fetch, find_run
    from launcher.cli.options.sources import is_chosen

    found = find_run(run, controller, ssh_config)
    if isinstance(found, RemoteRun):
        return fetch(found, log_dir, is_chosen=is_chosen("log_dir"))
    tell(f"launch: the logs of run {found.id} are on this machine, in {found.folder}")
    return 0
