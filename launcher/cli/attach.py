"""launch attach: show the output of a run that another process controls, here or on another machine."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import click

from launcher.cli.find_run import controller_options
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.table import option
from launcher.cli.options.values import gather
from launcher.errors import LauncherError
from launcher.runs.run_list import RemoteRun


@click.command("attach", cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@controller_options
@option("--json", "as_json", is_flag=True, help="Print one JSON object per line to stdout.", heading="Output")
@gather
def command(*, run: str | None, controller: str | None, ssh_config: Path | None, as_json: bool) -> int:
    """Show the last lines of RUN and its output until it ends.  [default: the newest run]

    Ctrl-C leaves, and the run continues. Ctrl-\\ shows the Python stacks of its ranks. The exit code is the run's.
    """
    from launcher.cli.error_lines import tell
    from launcher.cli.find_run import carry_out, fetch, find_run
    from launcher.cli.rejoin import rejoin_quietly
    from launcher.cli.result_files import fetch_asked
    from launcher.commands.run_actions import ask_for_stacks, attach
    from launcher.concurrency import start_thread

    found = find_run(run, controller, ssh_config)
    start_thread(partial(rejoin_quietly, found, click.get_current_context()), "rejoin", lambda error: None)
    signal.signal(signal.SIGQUIT, lambda *_: carry_out(found, ask_for_stacks))
    try:
        host = found.way.name if isinstance(found, RemoteRun) else None
        code = carry_out(found, partial(attach, as_json=as_json, host=host), is_of_a_run=True)
    except KeyboardInterrupt:
        tell(f"launch: left; run {found.id} continues (launch attach, launch stop)")
        return 0
    if isinstance(found, RemoteRun):
        try:
            fetch(found, Path("logs"), is_chosen=False)
            fetch_asked(found, Path("logs"))
        except LauncherError as error:
            tell(f"launch: {error.message}; fix: launch fetch --log-dir DIR")
        except click.exceptions.Exit:
            pass  # it was said why nothing could be copied, and the run's exit code is known
    return code
