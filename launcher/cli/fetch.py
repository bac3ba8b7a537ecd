"""launch fetch: copy the logs of a run from its controller host."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.help import Command
from launcher.cli.options.table import FILE, option
from launcher.cli.options.values import gather
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.runs.run_list import RemoteRun


@click.command("fetch", cls=Command)
@click.argument("run", metavar="[RUN]", required=False)
@click.argument("folder", metavar="[DIR]", required=False, type=FILE)
@option("--code", is_flag=True, help="Copy the code of RUN to DIR instead.  [default DIR: RUN-code]", heading="Code")
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
def command(
    *, run: str | None, folder: Path | None, code: bool, log_dir: Path, controller: str | None, ssh_config: Path | None
) -> int:
    """Copy the logs, run.json and the ranks' files of RUN from its controller host.  [default: the newest run]

    The copy is DIR/RUN, with DIR from --log-dir. An earlier copy of this run is replaced; if DIR/RUN is anything else,
    the copy is DIR/RUN.2.

    With --code, the code of RUN: the files that it sent with --sync, or else the patch against its commit, on the
    machine where RUN was started.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import fetch, find_run
    from launcher.cli.options.sources import is_chosen

    found = find_run(run, controller, ssh_config)
    if code:
        from launcher.cli.code_copies import fetch_code

        return fetch_code(found.id, folder)
    if folder is not None:
        raise UsageError(f"launch fetch takes one run, got {shown(str(folder))}", "name a directory with --log-dir")
    if isinstance(found, RemoteRun):
        return fetch(found, log_dir, is_chosen=is_chosen("log_dir"))
    tell(f"launch: the logs of run {found.id} are on this machine, in {found.folder}")
    return 0
