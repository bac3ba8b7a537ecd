"""launch exec: a plain command on every host."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.job_request import resolve_workdir
from launcher.cli.options.completion import complete_files
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, REACH, WORKDIR, Option, Request
from launcher.cli.options.sources import gather
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.commands.exec import Execution
    from launcher.output.console import Console
    from launcher.session.session import Session


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *HOSTS, *REACH, *LIFE,
    WORKDIR.but(help="Directory on the hosts, relative to this one.  [default: ~]"),
    HELPER_PYTHON, AS_JSON,
    Option(
        ["-b", "--fold"], is_flag=True, help="Show identical output of several hosts once, at the end.",
        heading="Output",
    ),
    click.Argument(["words"], metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files),
])  # fmt: skip
@gather
def command(*, fold: bool, request: Request) -> int:
    """Run a plain command on every host; output lines begin with the host's name.

    A single word is a shell command line (`-- 'nvidia-smi | head'`); several words run without a shell.
    Stdin is not sent to the hosts. The exit code is the first nonzero one in host order, or 69 if a host can't be
    reached or is lost and no command failed. In a Slurm job, its hosts are the default.
    """
    from launcher.cli.sessions import find_pythons, hold_session, make_settings
    from launcher.commands.exec import ExecResult, command_argv, execute
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams
    from launcher.session.session import SIGNALS
    from launcher.session.signals import catch_signals, outlast_signals

    if not request.words:
        raise UsageError("no command given", "write it after --: launch exec --hosts a,b -- uptime")
    if fold and request.as_json:
        raise UsageError("--fold and --json are both given", "pass only one of them")
    hosts = read_hosts(request)
    open_transport = choose_opener(request.reach, hosts, python=request.python)
    streams = find_streams(os.environ)
    console = Console(hosts, streams, as_json=request.as_json, is_folding=fold, is_patient=True)  # no logs are kept

    async def run(session: Session) -> Execution:
        console.end_with_reader(partial(session.interrupt, signal.SIGPIPE))
        with catch_signals(dict.fromkeys(SIGNALS, lambda: None)):  # also after the session has stopped listening
            done = await execute(session, command_argv(request.words), resolve_workdir(request.workdir), console.say)
            outlast_signals(SIGNALS, partial(os._exit, done.exit_code))
        return done

    def report(done: Execution) -> int:
        console.show_folded()
        failures = {failure.host: failure.text for failure in done.failures}
        console.emit("result", **asdict(ExecResult(done.exit_code, done.exit_codes, failures)))
        _report(console, done)
        return done.exit_code

    settings = make_settings("exec", request.timeouts, {}, find_pythons(request.python))
    return hold_session(hosts, open_transport, settings, console, run, report, has_ranks=False)


def _report(console: Console, done: Execution) -> None:
    from launcher.hosts.ranges import fold_names
    from launcher.hosts.unreachable import failure_lines

    by_code: dict[int, list[str]] = {}
    for host, code in done.own_codes.items():  # later ones come from the signal that launch sent
        by_code.setdefault(code, []).append(host)
    for code, names in by_code.items():
        if code:
            console.say(f"launch: {fold_names(names)}: exit code {code}")
    for line in failure_lines(done.failures):
        console.say(line)
    if not done.census.is_clean:
        console.say(f"launch: {done.census.describe()}")
