"""launch check, free, clean, exec and hosts: what is asked of hosts without a run, and the session that asks it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.job_request import read_job, resolve_workdir
from launcher.cli.options.completion import complete_files
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    AS_JSON,
    DRY_RUN,
    ENTER,
    ENV,
    HELPER_PYTHON,
    HOSTS,
    JOB,
    LIFE,
    MASTER_ADDR,
    REACH,
    SYNC,
    WORDS,
    WORKDIR,
    Option,
    Request,
)
from launcher.cli.options.sources import gather
from launcher.cli.tree_request import add_tree
from launcher.errors import EXIT_SIGNAL_BASE, UsageError
from launcher.hosts.host import Host, part_spares
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.wording import lay_out

if TYPE_CHECKING:
    from launcher.commands.clean import Cleaning, CodeCleaning
    from launcher.commands.exec import Execution
    from launcher.commands.free import Survey
    from launcher.job.job import Timeouts
    from launcher.output.console import Console
    from launcher.runs.inspection import Inspection
    from launcher.runs.run_request import Opener
    from launcher.session.session import Session

DoneT = TypeVar("DoneT")
_SENDS = "Send the code in DIR and check it there.  [default DIR: the repository]"


# ---- the session ----------------------------------------------------------------------------------------------------


def act_on_hosts(
    purpose: str, request: Request, act: Callable[[Session, Console], Awaitable[DoneT]],
    report: Callable[[Console, DoneT], int], *,
    hosts: Sequence[Host] = (), env: Mapping[str, str] | None = None, pythons: Sequence[str] = (),
    is_folding: bool = False, has_ranks: bool = True,
) -> int:  # fmt: skip
    """Act in a session with the hosts of the request, and report what was done; return an exit code.

    env: of what is started there; pythons: those that may run the helper. By default that is --python alone, or else
    the usual ones.
    """
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams
    from launcher.session.settings import loader_pythons

    hosts = hosts or read_hosts(request)
    open_transport = choose_opener(request.reach, hosts, python=request.python)
    pythons = pythons or ((request.python,) if request.python else loader_pythons(None))
    streams = find_streams(os.environ)
    console = Console(hosts, streams, as_json=request.as_json, is_folding=is_folding, is_patient=True)
    return hold_session(
        purpose, hosts, open_transport, console, lambda session: act(session, console), partial(report, console),
        timeouts=request.timeouts, env=env or {}, pythons=pythons, has_ranks=has_ranks,
    )  # fmt: skip


def hold_session(
    purpose: str, hosts: Sequence[Host], open_transport: Opener, console: Console,
    act: Callable[[Session], Awaitable[DoneT]], report: Callable[[DoneT], int], *,
    timeouts: Timeouts, env: Mapping[str, str], pythons: Sequence[str], has_ranks: bool = True, farewell: str = "",
) -> int:  # fmt: skip
    """Act in a session with these hosts, report what was done once all output is shown, and close the console.

    Return the exit code of `report`, or that of a signal. farewell: what is said after a signal.
    """
    import asyncio

    from launcher.session.session import Session
    from launcher.session.settings import Settings
    from launcher.session.signals import Interrupted

    # Such as `check-20261120-091233-1f3a`, in place of a run's id: two may begin in one second.
    name = f"{purpose}-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}"

    async def execute() -> DoneT:
        outputs = console.outputs(hosts, None, has_ranks=has_ranks)
        transport = open_transport(hosts, console.say)
        settings = Settings(name, env, pythons, timeouts)
        session = Session(hosts, transport, outputs, settings, say=console.say, progress=console.progress)
        try:
            return await act(session)
        finally:
            for output in outputs:
                output.finish()  # a last line may have no newline

    try:
        return report(asyncio.run(execute()))
    except Interrupted as interruption:
        if farewell:
            console.say(farewell)
        return EXIT_SIGNAL_BASE + interruption.number
    finally:
        console.close()


# ---- check ----------------------------------------------------------------------------------------------------------


@click.command("check", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *HOSTS, *REACH, SYNC[0].but(help=_SENDS), *SYNC[1:], MASTER_ADDR, *JOB,
    AS_JSON.but(help="Print all facts and findings as one JSON object."),
    WORDS,
])  # fmt: skip
@gather
def check(*, request: Request) -> int:
    """Compare the hosts and show problems and differences, without starting a run.

    With SCRIPT, compare the script on all hosts too. The exit code is 0 if nothing would break a run. In a Slurm job,
    its hosts are the default.
    """
    from launcher.commands import check
    from launcher.job.activation import candidate_pythons
    from launcher.runs import host_history
    from launcher.runs.run_list import RunList
    from launcher.session.settings import loader_pythons
    from launcher.sync.contents import Contents

    hosts = read_hosts(request)
    job = add_tree(read_job(request, hosts), request)

    async def ask(session: Session, console: Console) -> Inspection:
        contents = Contents(job.tree, os.environ) if job.tree is not None else None
        runs = RunList.of_user(os.environ)
        incidents = host_history.describe(runs, [host.name for host in hosts], time.time())
        return await check.check(job, session, candidate_pythons(job, sys.executable), incidents, contents)

    def report(console: Console, inspection: Inspection) -> int:
        if request.as_json:
            console.emit("check", **check.as_record(job, inspection))
        else:
            for line in check.table(job, inspection):
                console.show(line)
        return check.exit_code(inspection)

    return act_on_hosts("check", request, ask, report, hosts=hosts, env=job.env, pythons=loader_pythons(job.python))


# ---- free -----------------------------------------------------------------------------------------------------------


@click.command("free", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON, AS_JSON.but(help="Print the result as one JSON object."),
])  # fmt: skip
@gather
def free(*, request: Request) -> int:
    """Show which GPUs are free, and who has claimed the others or uses them.

    A run of `launch` claims its GPUs; a process that was started without it is shown once it uses a GPU's memory. The
    exit code is 69 if a host can't be reached. In a Slurm job, its hosts are the default.
    """
    from launcher.commands import free

    async def ask(session: Session, console: Console) -> Survey:
        return await free.survey(session)

    def report(console: Console, found: Survey) -> int:
        console.emit("free", **free.as_record(found))
        for line in free.table(found):
            console.show(line)
        return found.exit_code

    return act_on_hosts("free", request, ask, report)


# ---- clean ----------------------------------------------------------------------------------------------------------


@click.command("clean", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON,
    ENV.but(help="With --code, look below DIR on the hosts: XDG_CACHE_HOME=DIR.", needs="code"),
    DRY_RUN.but(help="Only list the leftovers."),
    Option(
        ["--code"], is_flag=True, heading="Checks",
        help="Instead, remove the code that --sync sent for runs that are over.",
    ),
])  # fmt: skip
@gather
def clean(*, code: bool, request: Request) -> int:
    """List, stop and remove leftovers of your earlier runs on the hosts.

    Leftovers are processes of a run whose helper on the host is gone, and directories of runs that are over, for
    example on a host that lost power. An active run is named and left alone, and other users' runs are never touched.
    Jobs that a run submitted (sbatch, at) aren't part of it and are kept. In a Slurm job, its hosts are the default.
    """
    from launcher.commands import clean
    from launcher.job.variables import parse_settings
    from launcher.runs.report import left_lines

    is_dry, variables = request.dry_run, parse_settings(request.env, os.environ)

    async def stop(session: Session, console: Console) -> Cleaning:
        return await clean.clean(session, say=console.say, is_dry=is_dry)

    def report(console: Console, done: Cleaning) -> int:
        if done.census.left:  # otherwise no host responded, which is said below
            console.say(f"launch: {clean.verdict(done, is_dry=is_dry)}")
        for line in [*left_lines(done.census), *clean.kept_lines(done.kept), *failure_lines(done.failures)]:
            console.say(line)
        return done.exit_code

    async def remove(session: Session, console: Console) -> CodeCleaning:
        return await clean.clean_code(session, is_dry=is_dry)

    def report_code(console: Console, done: CodeCleaning) -> int:
        for line in [*clean.cleaning_lines(done, is_dry=is_dry), *failure_lines(done.failures)]:
            console.say(line)
        return done.exit_code

    if code:
        return act_on_hosts("clean", request, remove, report_code, env=variables)
    return act_on_hosts("clean", request, stop, report, env=variables)


# ---- exec -----------------------------------------------------------------------------------------------------------


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
def execute(*, fold: bool, request: Request) -> int:
    """Run a plain command on every host; output lines begin with the host's name.

    A single word is a shell command line (`-- 'nvidia-smi | head'`); several words run without a shell.
    Stdin is not sent to the hosts. The exit code is the first nonzero one in host order, or 69 if a host can't be
    reached or is lost and no command failed. In a Slurm job, its hosts are the default.
    """
    from launcher.commands import exec as execution
    from launcher.session.session import SIGNALS
    from launcher.session.signals import catch_signals, outlast_signals

    if not request.words:
        raise UsageError("no command given", "write it after --: launch exec --hosts a,b -- uptime")
    if fold and request.as_json:
        raise UsageError("--fold and --json are both given", "pass only one of them")

    async def run(session: Session, console: Console) -> Execution:
        argv, workdir = execution.command_argv(request.words), resolve_workdir(request.workdir)
        console.end_with_reader(partial(session.interrupt, signal.SIGPIPE))
        with catch_signals(dict.fromkeys(SIGNALS, lambda: None)):  # also after the session has stopped listening
            done = await execution.execute(session, argv, workdir, console.say)
            outlast_signals(SIGNALS, partial(os._exit, done.exit_code))
        return done

    def report(console: Console, done: Execution) -> int:
        console.show_folded()
        failures = {failure.host: failure.text for failure in done.failures}
        console.emit("result", **asdict(execution.ExecResult(done.exit_code, done.exit_codes, failures)))
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
        return done.exit_code

    return act_on_hosts("exec", request, run, report, is_folding=fold, has_ranks=False)


# ---- hosts ----------------------------------------------------------------------------------------------------------


@click.command("hosts", cls=Command, params=[
    CONFIG, *HOSTS, ENTER,
    AS_JSON.but(help="Print one JSON list to stdout."),
])  # fmt: skip
@gather
def hosts(*, request: Request) -> int:
    """Show the hosts in rank order, as launch reads them, without contacting them.

    In a Slurm job, its hosts are the default.
    """
    ranked, spares = part_spares(read_hosts(request), None)
    rows = [_describe_host(rank, host) for rank, host in enumerate(ranked)]
    rows += [_describe_host(None, host) for host in spares]
    if request.as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    # An empty cell is decided by ssh_config, or by the host itself.
    titles = {"node_rank": "node", "gpus": "GPUs", "source": "from"}
    shown = [name for name in rows[0] if name != "enter" or any(row["enter"] for row in rows)]
    cells = [[_show_cell(name, row[name]) for name in shown] for row in rows]
    click.echo("\n".join(lay_out([[titles.get(name, name) for name in shown], *cells])))
    return 0


def _describe_host(rank: int | None, host: Host) -> dict[str, Any]:
    return {
        "node_rank": rank,
        "host": host.name,
        "slots": host.slots,
        "gpus": list(host.gpus) if host.gpus is not None else None,
        "user": host.user,
        "port": host.port,
        "addr": host.address,
        "enter": host.enter,
        "source": host.source,
    }


def _show_cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if value is not None else "spare" if name == "node_rank" else "-"
