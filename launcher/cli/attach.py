"""launch attach: show the output of a run that another process controls, here or on another machine."""

from __future__ import annotations

import json
import signal
from collections import deque
from pathlib import Path

import click

from launcher.cli.answer import conclude, find_doing, is_running
from launcher.cli.fetch import fetch_logs
from launcher.cli.find_run import ControllerLost, carry_out, find_asker, find_run, own_streams, run_there
from launcher.cli.options.command import Command, gather
from launcher.cli.options.request import AS_JSON, RUN, RUN_PLACE
from launcher.errors import LauncherError
from launcher.output.console import dated
from launcher.output.log_reader import Choice, LogPrinter, RunLogs, as_objects, as_shown, follow
from launcher.output.output_streams import describe_error, tell
from launcher.runs.run_list import ListedRun

_LAST_LINES = 20
_TAIL_BYTES = 1 << 16


@click.command("attach", cls=Command, params=[RUN, *RUN_PLACE, AS_JSON])
@gather
def command(*, run: str | None, controller: str | None, ssh_config: Path | None, as_json: bool) -> int:
    """Show the last lines of RUN and its output until it ends.  [default: the newest run]

    Ctrl-C leaves, and the run continues. Ctrl-\\ shows the Python stacks of its ranks. The exit code is the run's.
    """
    found = find_run(run, controller, ssh_config)
    if find_asker() is None:
        signal.signal(signal.SIGQUIT, lambda *_: carry_out(found, "stacks"))
    try:
        if isinstance(found, ListedRun):
            return attach(found, as_json=as_json, host=controller)
        code = run_there(found, is_of_a_run=True)
    except KeyboardInterrupt:
        tell(f"launch: left; run {found.id} continues (launch attach, launch stop)")
        return 0
    try:
        fetch_logs(found, Path("logs"), is_chosen=False)
    except ControllerLost as error:
        tell(describe_error(error))
    except LauncherError as error:
        tell(f"launch: {error.message}; fix: launch fetch --log-dir DIR")
    except click.exceptions.Exit:
        pass  # it was said why
    return code


def attach(run: ListedRun, *, as_json: bool = False, host: str | None = None) -> int:
    """Show the last lines of a run and what follows, until it ends; return its exit code.

    as_json: as objects on stdout, the first of which names the run, and the last one its result. host: how the user
    names the machine that controls it. Ctrl-C raises KeyboardInterrupt, once all that was read is written.
    """
    title, host = f"run {run.id} ({run.name})" if run.name else f"run {run.id}", host or run.controller.host
    if run.is_alive is False:
        tell(f"launch: {title}, which {host} controlled, has ended; its last lines:")
    else:
        doing = f"; {doing}" if (doing := find_doing(run)) else ""
        tell(f"launch: watching {title}, which {host} controls{doing}; Ctrl-C leaves it running")
    record, streams = run.read_record(), own_streams()
    form = as_objects(record.utc_offset) if as_json else as_shown(streams, record.all_hosts)
    printer = LogPrinter(streams, form)
    if as_json:
        _emit("attached", run, controller=host, logs=run.controller.folder)
    logs = RunLogs(run.folder, record.all_hosts, Choice(), _TAIL_BYTES)
    try:
        for line in deque(logs.read(), _LAST_LINES):
            printer.print(line)
        printer.flush()
        follow(logs, printer, lambda: is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        raise
    code = conclude(run, prints=False)
    if as_json:
        attempts = run.read_record().attempts
        result = run.read_json().get("result") or {"exit_code": code, "error": "the run has no result"}
        _emit("result", run, attempts=len(attempts), hosts=attempts[-1].hosts if attempts else (), **result)
    return code


def _emit(event: str, run: ListedRun, **values: object) -> None:
    """Print an object of --json about a run."""
    print(json.dumps(dated(event, run=run.id, name=run.name, **values)), flush=True)
