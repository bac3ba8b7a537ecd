"""launch fetch: copy the logs of a run from its controller host."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.completion import complete_files, complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.request import FILE, SIZE, option
from launcher.cli.options.sources import gather
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.runs.run_list import RemoteRun


@click.command("fetch", cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_files)
@option("--code", is_flag=True, help="Copy the code of RUN to PATH instead.  [default PATH: RUN-code]", heading="Code")
@option(
    "--all",
    "from_all",
    is_flag=True,
    help="Copy PATH from all hosts, not only from node 0.",
    heading="Output",
    needs="paths",
)
@option(
    "--limit",
    metavar="SIZE",
    type=SIZE,
    default="2GB",
    show_default=True,
    help="With PATH, copy at most SIZE from each host.",
    heading="Output",
    needs="paths",
)
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
    *, run: str | None, paths: tuple[str, ...], code: bool, from_all: bool, limit: int, log_dir: Path,
    controller: str | None, ssh_config: Path | None,
) -> int:  # fmt: skip
    """Copy the logs, run.json and the ranks' files of RUN from its controller host.  [default: the newest run]

    The copy is DIR/RUN, with DIR from --log-dir. Only what is missing there is copied, and if DIR/RUN is anything else
    than an earlier copy, nothing.

    With PATH, such as outputs/ or 'outputs/*.pt', copy these files of RUN from node 0 to DIR/RUN-fetched instead. PATH
    is relative to the directory in which the ranks run. The newest run is `latest`.

    With --code, the code of RUN: the files that it sent with --sync, or else the patch against its commit. PATH and
    --code need the machine where RUN was started.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import find_run
    from launcher.cli.options.sources import is_chosen, refuse_others

    if code:
        refuse_others("code", "controller", "ssh_config")
    found = find_run(run, controller, ssh_config)
    if code:
        from launcher.cli.code_copies import fetch_code

        if len(paths) > 1:
            raise UsageError(f"--code takes one directory, got {shown(paths[1])}", "see launch fetch --help")
        return fetch_code(found.id, Path(paths[0]) if paths else None)
    if paths:
        from launcher.cli.result_files import fetch_paths

        return fetch_paths(
            found, paths, log_dir, is_chosen=is_chosen("log_dir"), from_all=from_all, most_bytes=limit
        )  # fmt: skip
    if isinstance(found, RemoteRun):
        from launcher.cli.result_files import fetch_logs

        return fetch_logs(found, log_dir, is_chosen=is_chosen("log_dir"))
    tell(f"launch: the logs of run {found.id} are on this machine, in {found.folder}")
    return 0
