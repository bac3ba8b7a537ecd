"""--detach onto another machine: start a controller and agents there, and leave once all ranks run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any

from launcher.cli.answer import ASK
from launcher.cli.detachment import HINTS
from launcher.cli.find_run import tell_lost
from launcher.cli.host_session import hold_session
from launcher.cli.options.request import Request
from launcher.cli.repetition import describe_origin, keep_origin, keep_version, name_continued
from launcher.cli.runner import make_console
from launcher.clock import wall_clock
from launcher.controller.orders import Control
from launcher.controller.planting import Planting
from launcher.controller.remote_launcher import RemoteLauncher
from launcher.errors import EXIT_PREFLIGHT, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE, HostsUnreachable, UsageError
from launcher.forms import load_json
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import Job
from launcher.job.tree import Tree
from launcher.output.console import dated
from launcher.output.output_streams import find_streams, tell
from launcher.preflight.findings import refuse_problems
from launcher.runs import host_history
from launcher.runs.code_version import find_code, find_version
from launcher.runs.run_list import RemoteRun, RunList, Way
from launcher.runs.run_request import ALL_RUN, QUEUED, Opener, RunOptions
from launcher.session.session import Session
from launcher.session.settings import loader_pythons
from launcher.sync.delivery import send_code
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.base import Transport, TransportError, TransportSettings

_STOPPED = (EXIT_SIGNAL_BASE + signal.SIGINT, EXIT_SIGNAL_BASE + signal.SIGTERM)
_LOGOUT_S = 1.0  # systemd-logind ends processes as soon as the session has closed


def run_planted(
    job: Job, hosts: Sequence[Host], spares: Sequence[Host], controller: Host, open_transport: Opener,
    request: Request, options: RunOptions, reach: TransportSettings,
) -> int:  # fmt: skip
    """Run the job under a controller on another machine; return once it has ended, or needs no terminal."""
    spares = tuple(spares) if options.restarts else ()
    everyone, job_here = (*hosts, *spares), job
    transport = open_transport(tuple({host.name: host for host in (controller, *everyone)}.values()), tell)
    if job.tree is not None:
        stopped = _send_code(job, job.tree, controller, lambda hosts, say: open_transport(hosts, _say_nothing), request)
        if stopped:
            return stopped
        job = replace(job, tree=replace(job.tree, kept={}))  # the controller's host has it by now
    credentials = make_credentials(len(everyone))
    runs = RunList.of_user(os.environ)
    with _remembering():  # so that no run of this machine has the id that the controller shall use
        own_id = runs.take_id(datetime.now(), credentials.fingerprint)
    version = find_version(find_code(job))
    control = Control(
        replace(name_continued(job), own_python=sys.executable), tuple(hosts), spares, options,
        {**describe_origin(request), "git": version and asdict(version)}, credentials, own_id, request.quiet,
        request.as_json, request.notify, controller.name,
        host_history.describe(runs, [host.name for host in everyone], time.time()),
    )  # fmt: skip
    streams = find_streams(os.environ)
    planting = Planting(controller, control, transport, loader_pythons(job.python), streams)
    try:
        run_id = _gather(planting, everyone, request)
        way = Way(
            controller.name, controller.user, controller.port, transport.name,
            str(reach.ssh_config.absolute()) if reach.ssh_config else None, job.python, controller.enter,
        )  # fmt: skip
        with _remembering():
            if run_id != own_id:
                runs.discard(own_id)
                raise UsageError(f"--detach: {controller.name} has another run with the id {own_id}", "try again")
            planted = RemoteRun(run_id, way, request.name, wall_clock())
            runs.add(planted)
        if not request.as_json:
            tell(f"launch: run {planted.id} is controlled from {controller.name}, and its logs are kept there")
        if version is not None:
            keep_version(runs, run_id, version)
        with keep_origin(runs, run_id, job_here, everyone, request):
            code = _attach(planting)
    except KeyboardInterrupt:
        if planting.was_refused:
            tell("launch: stopped by you; nothing was started")
        raise
    finally:
        planting.close()
        if planting.was_refused:
            runs.discard(own_id)
    if code is not None:
        return code if planting.was_refused else _conclude(planted, code)
    why = QUEUED if planting.is_queued else ALL_RUN
    return _leave(planted, controller, everyone, open_transport((controller,), _say_nothing), job, request, why)


def _send_code(job: Job, tree: Tree, controller: Host, open_transport: Opener, request: Request) -> int:
    """Bring the code to the controller's host, from which all hosts get it; return the exit code of a signal, or 0."""
    console = make_console([controller], replace(request, as_json=False))

    async def send(session: Session) -> int:
        sent = await send_code(session, replace(tree, links=()), os.environ)
        if failures := session.failures():
            raise HostsUnreachable(failures)
        refuse_problems(sent.findings)
        return 0

    farewell = "launch: stopped by you; nothing was started"
    return hold_session(
        "sync", [controller], open_transport, console, send,
        timeouts=job.timeouts, env=job.env, pythons=loader_pythons(job.python), farewell=farewell,
    )  # fmt: skip


def _gather(planting: Planting, hosts: Sequence[Host], request: Request) -> str:
    console = make_console(hosts, replace(request, as_json=False))
    try:
        return planting.gather(console.progress)
    finally:
        console.close()


@contextlib.contextmanager
def _remembering() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"--detach: can't remember the run on this machine: {error.filename}: {error.strerror}"
        raise UsageError(text, "choose another directory with XDG_STATE_HOME") from None


def _attach(planting: Planting) -> int | None:
    try:
        return planting.attach()
    except TransportError as error:
        tell_lost(error.failure)
        return EXIT_UNREACHABLE


def _leave(
    run: RemoteRun, controller: Host, hosts: Sequence[Host], transport: Transport, job: Job, request: Request,
    why: str,
) -> int:  # fmt: skip
    """Look whether controller and agents have survived the end of the logins that started them."""
    connect = partial(RemoteLauncher, transport, controller, loader_pythons(job.python), job.timeouts.connect_timeout_s)
    try:
        time.sleep(_LOGOUT_S)
        found = _look(run.id, connect())
    except TransportError as error:
        tell_lost(error.failure)
        return EXIT_UNREACHABLE
    except KeyboardInterrupt:
        tell(f"launch: run {run.id} continues on {controller.name}; whether it needs this terminal was not seen")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    code, missing = found.get("exit_code"), found.get("missing")
    lost = [] if found.get("is_alive") or code is not None else [controller.name]
    gone = missing if isinstance(missing, list) else []  # what another machine says has any form
    lost += [host.name for host in hosts if host.name in gone and host.name not in lost]
    if lost:
        if controller.name not in lost and code is None:
            _end(run.id, connect)
        tell(f"launch: lost {fold_names(lost)} of run {run.id} as the login there ended")
        tell("  why: the host may end all processes of a login with it (launch attach shows how the run ended)")
        tell("  fix: loginctl enable-linger there, or use --controller here")
        return EXIT_PREFLIGHT
    if request.as_json:
        print(json.dumps(dated("detached", run=run.id, name=request.name, controller=controller.name)), flush=True)
    if code is not None:
        tell(f"launch: run {run.id} has ended meanwhile, exit code {code} (launch attach shows how)")
        return _conclude(run, code)
    if request.as_json:
        return 0
    tell(f"launch: {why}; run {run.id} continues without this terminal")
    for command, purpose in {**HINTS, "launch fetch": "copy its logs to this machine"}.items():
        tell(f"  {command:<15} {purpose}")
    return 0


def _conclude(run: RemoteRun, code: int) -> int:
    """Say where the logs of a run are that has ended; return its exit code."""
    if code not in (0, EXIT_UNREACHABLE, *_STOPPED):
        tell(f"launch: the logs are on {run.way.name}; fix: copy them with launch fetch")
    return code


def _look(run_id: str, launcher: RemoteLauncher) -> dict[str, Any]:
    with contextlib.closing(launcher), contextlib.suppress(ValueError):
        launcher.ask((ASK, run_id, "agents"), find_streams(os.environ))
        found = load_json(launcher.read_output() or b"{}")
        return found if isinstance(found, dict) else {}
    return {}


def _end(run_id: str, connect: Callable[[], RemoteLauncher]) -> None:
    """End a run that would fail sooner or later, if it has not ended yet: it did not prove itself."""
    with contextlib.suppress(TransportError), contextlib.closing(connect()) as launcher:
        launcher.ask(("stop", run_id, "--now"), find_streams(os.environ))
        for _ in launcher.pieces():
            pass  # what is said about it follows


def _say_nothing(text: str) -> None:
    """Print nothing: it was said when the first connection was made."""
