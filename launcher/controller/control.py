"""Control a run on this host, for a launch host that may leave.

Until the launch host says `go`, nothing is started, and its end ends this process. From then on this is a `launch` like
any other, which shows its output there for as long as it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher.concurrency import start_thread
from launcher.controller.agent_start import find_redial
from launcher.controller.controller_unit import ControllerUnit
from launcher.controller.orders import HUNG_UP, LEFT, LEFT_QUEUED, Control, LastLine, find_patience, read_in_time
from launcher.controller.rejoin import watch_agents
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, LauncherError, UsageError
from launcher.hosts.entering import already_inside
from launcher.hosts.ranges import fold_names
from launcher.node import messages
from launcher.node.archive import find_own
from launcher.node.facts import network
from launcher.node.logind import is_shutting_down
from launcher.output.console import Console
from launcher.output.lines import STDOUT
from launcher.output.log_writer import redirect_streams, warn_of_little
from launcher.output.output_streams import OutputStreams
from launcher.output.plain_messages import describe_error, tell
from launcher.output.run_folder import RunRecord, create_record, reopen_record
from launcher.output.style import Style
from launcher.output.write_queue import STALLED_S
from launcher.runs import host_history
from launcher.runs.execution import execute_job, listed
from launcher.runs.kept_run import KeptRun
from launcher.runs.logout import warn_of_lost_memory
from launcher.runs.result import Result
from launcher.runs.run import RunLeftError
from launcher.runs.run_list import ListedRun, RunList, RunListEntry
from launcher.runs.run_request import QUEUED, RunRequest
from launcher.runs.state_home import find_state, own_state
from launcher.session.node_state import Census
from launcher.transports.agents.hub import LEAVE_S, Hub, Notice
from launcher.wording import span

_READ_BYTES = 4096
_END_S = 1.0  # for an agent to end that is connected
_AGAIN_S = 1.0  # between two tries to listen
PORT_S = 60.0  # for a connection of another program to end that has the port
UNITS_S = 60.0  # for the hosts to say whether they will start an agent after a boot
_ENDS = "SSH_CONNECTION"
_FIX_UNIT = "loginctl enable-linger there, or install cron"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP)


def control(
    request: Control, streams: OutputStreams, last_line: LastLine, variables: Mapping[str, str], silence_s: float
) -> tuple[int, bool]:
    """Control the run to its end; return its exit code, and whether it was started before a signal came.

    Raise LauncherError if it can't start. silence_s: after it the launch host is gone, before `go`.
    """
    for number in (signal.SIGQUIT, signal.SIGTSTP):  # until the run itself listens to them
        signal.signal(number, lambda number, frame: None)
    hosts = [*request.hosts, *request.spares]
    console = Console(
        hosts, streams, is_quiet=request.is_quiet, as_json=request.as_json, ranks=request.options.shown_ranks
    )
    state = find_state(variables)
    _own_logs(state)
    runs = RunList(state / "runs", state / "logs", token=request.credentials.fingerprint)
    record = create_record(
        state / "logs", datetime.now(), console.complain, request.known, ids=runs, run_id=request.run_id,
        has_live=True, host=request.host,
    )  # fmt: skip
    hub, is_changed = _make_hub(request, record.run_id, 1)
    try:
        addresses, port = _gather(hub, record, request, silence_s)
        hub.go()
        console.transcribe(record.transcript)
        with listed(runs, record, is_needed=True) as entry:
            watch_agents(request, hub, entry, is_changed, addresses, port, variables=variables, say=console.say)
            host = request.host or socket.gethostname()
            for line in [*warn_of_lost_memory(host), *warn_of_little(record.folder, host)]:
                console.say(line, Style.TEXT)
            kept = KeptRun(runs.base / record.run_id, partial(_complain, console))
            values = Kept(request, dict(variables), str(Path.cwd()), port)
            unit = _find_unit(request, runs.base / record.run_id)
            if unit is not None:
                start_thread(partial(_warn_of_reboots, hub, console), "units", lambda error: None)
            # What this machine knows of earlier runs, beside what the launch host does.
            known = host_history.describe(runs, [each.name for each in hosts], time.time())
            run = RunRequest(
                request.job, already_inside(request.hosts), lambda hosts, say: hub.open_transport(), record, console,
                request.options, spares=already_inside(request.spares), incidents={**known, **request.incidents},
                leave=partial(_leave, console, record, last_line, hub, kept, values, unit),
                keep=kept.note if request.options.restarts else None,
                can_reach=partial(_can_reach, hub),
            )  # fmt: skip
            result = _drive(run, entry, kept, unit, variables, request.notify, partial(_end, last_line))
        return result.exit_code, record.has_begun
    finally:
        if not record.has_begun:
            record.discard()
        _close(hub, console, request)


@dataclass(frozen=True, slots=True)
class Kept:
    """What another controller needs to drive a run, besides where the run stands."""

    request: Control
    variables: Mapping[str, str]  # the environment
    directory: str  # in which the process was started
    port: int


def take_up(place: str, environment: MutableMapping[str, str]) -> NoReturn:
    """Drive a run whose controller died, in a process that was started for that; never returns.

    place: of the run's entry in the list of runs; environment: that of this process, which becomes that of the first
    controller.
    """
    streams = OutputStreams(frozenset(), is_one_file=False, with_color=False, columns=None)
    try:
        code = _take_up(Path(place), environment, streams)
    except LauncherError as error:
        tell(describe_error(error), streams)
        code = error.exit_code
    except Exception:  # noqa: BLE001 - it is in launch.log, or whoever has started this process reads it
        traceback.print_exc()
        code = EXIT_FAILED
    os._exit(code)


def _take_up(place: Path, environment: MutableMapping[str, str], streams: OutputStreams) -> int:
    """Take a run up; return its exit code at its end. Raise LauncherError if it can't be taken up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever has started this may have ignored it
    for number in (signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, lambda number, frame: None)
    state = place.parent.parent
    _own_logs(state)
    runs = RunList(state / "runs", state / "logs")
    run, entry = runs.resume(place.name)
    kept = KeptRun(place, lambda error: _complain(console, error))
    values, standing, generation = kept.resume()
    assert isinstance(values, Kept)
    request, variables = values.request, _drop_login(values.variables, environment)
    environment.clear()
    environment.update(variables)
    with contextlib.suppress(OSError):
        os.chdir(values.directory)
    hosts = [*request.hosts, *request.spares]
    console = Console(hosts, streams, is_quiet=True)
    record = reopen_record(run.folder, run.id, console.complain, request.known, has_live=True, host=request.host)
    console.transcribe(record.transcript)
    unit = _find_unit(request, place)
    hub, is_changed = _make_hub(request, run.id, generation)
    try:
        _listen_again(hub, values.port)
        hub.go()
        hub.keep(_make_notice(request, record))
        if run.end is not None or run.is_being_stopped or run.read_record().result is not None:
            return _end_late(run, entry, kept, unit, console)
        addresses = [address for _, address in network.list_addresses()]
        watch_agents(
            request, hub, entry, is_changed, addresses, values.port, variables=variables, say=console.say
        )  # fmt: skip
        console.say(f"launch: the controller of run {run.id} died; controller {generation} takes it up", Style.STRONG)
        console.detach()
        redirect_streams(record.folder)
        again = RunRequest(
            request.job, already_inside(request.hosts), lambda hosts, say: hub.open_transport(), record, console,
            request.options, spares=already_inside(request.spares), keep=kept.note, standing=standing,
            can_reach=partial(_can_reach, hub),
        )  # fmt: skip
        if unit is not None:
            unit.stand_by(is_last=standing.is_hopeless)
        return _drive(again, entry, kept, unit, variables, request.notify, os._exit).exit_code
    finally:
        record.disk.wait(STALLED_S)
        entry.close(is_kept=True)
        _close(hub, console, request)


def _end_late(run: ListedRun, entry: RunListEntry, kept: KeptRun, unit: ControllerUnit | None, console: Console) -> int:
    """End a run whose controller died while it ended the run, or after that; return its exit code."""
    found = run.read_record().result
    code = found.exit_code if found is not None else EXIT_SIGNAL_BASE + signal.SIGINT
    number = found.interrupted_by if found is not None else signal.SIGINT
    if run.end is not None:
        code = run.end.exit_code
    elif found is None:
        console.say(f"launch: stopped by you; the controller of run {run.id} died before its last process had ended")
    else:
        console.say(f"launch: run {run.id} has ended; its controller died before it could say so")
    if run.end is None:
        entry.end(Result(code, 0.0, Census({}, {}), interrupted_by=number))
    kept.remove()
    if unit is not None:
        unit.remove()
    return int(code)


def _listen_again(hub: Hub, port: int) -> None:
    """Listen where the agents dial; raise LauncherError if another program has the port for longer."""
    deadline = time.monotonic() + PORT_S
    while True:
        try:
            hub.listen([port])
            return
        except LauncherError as error:
            if time.monotonic() > deadline:
                text = f"{error.message} (port {port}, which the agents of the run dial)"
                raise LauncherError(text, f"see who has it with ss -tlnp sport = :{port}, and try again") from None
        time.sleep(_AGAIN_S)


def _drop_login(variables: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what was of a login that is over: its agent's socket may be anybody's by now.

    The address to which the login went stays if this host still has it, since ranks of other hosts may reach those of
    this one by it. now: the environment of this process, which a login may have started, too.
    """
    kept = {name: value for name, value in variables.items() if not name.startswith(("SSH_", "XDG_SESSION_"))}
    own = {address for _, address in network.list_addresses()}
    for found in (now, variables):
        if set(found.get(_ENDS, "").split()[2:3]) & own:
            return {**kept, _ENDS: found[_ENDS]}
    return kept


def _own_logs(state: Path) -> None:
    try:
        own_state(state, "logs")
    except OSError as error:
        text = f"can't keep the logs in {error.filename or state} on {socket.gethostname()}: {error.strerror}"
        raise UsageError(text, "set XDG_STATE_HOME in its rc files to a directory that only you can write") from None


def _make_hub(request: Control, run_id: str, generation: int) -> tuple[Hub, threading.Event]:
    """Return the hub of a run's agents, and what is set whenever one of them comes or goes."""
    is_changed = threading.Event()
    hub = Hub(
        run_id, [host.name for host in (*request.hosts, *request.spares)], request.credentials,
        silence_s=request.job.timeouts.silence_s, on_change=is_changed.set, may_rejoin=bool(request.options.restarts),
        generation=generation,
    )  # fmt: skip
    return hub, is_changed


def _can_reach(hub: Hub, names: Collection[str]) -> bool:
    return all(map(hub.has, names))


def _drive(
    run: RunRequest, entry: RunListEntry, kept: KeptRun, unit: ControllerUnit | None, variables: Mapping[str, str],
    notify: str | None, end_process: Callable[[int], object],
) -> Result:  # fmt: skip
    """Drive a run to its end; if this host shuts down, the process ends before, and agents wait for another one."""

    def find_successor() -> str:
        if not kept.is_kept or entry.is_being_stopped or not is_shutting_down():
            return ""
        return "its boot unit" if unit is not None and unit.is_installed else f"launch rejoin {run.record.run_id}"

    run = replace(run, find_successor=find_successor)
    running = execute_job(run, entry, variables=variables, notify=notify, end_process=end_process)
    try:
        result = asyncio.run(running)
    except RunLeftError:
        os._exit(EXIT_SIGNAL_BASE + signal.SIGTERM)
    kept.remove()
    if unit is not None:
        unit.remove()
    return result


def _find_unit(request: Control, place: Path) -> ControllerUnit | None:
    return ControllerUnit(place, request.credentials.fingerprint) if request.survives_reboots else None


def _close(hub: Hub, console: Console, request: Control) -> None:
    # Without restarts, an agent that was cut off has ended by itself.
    hub.close(LEAVE_S if request.options.restarts else _END_S)
    console.close()  # last: a terminal may be blocked for ever


def _make_notice(request: Control, record: RunRecord) -> Notice | None:
    """Return what a host tells the user if it can't reach a controller of this run any more."""
    if request.notify is None:
        return None
    own = request.host or socket.gethostname()
    variables = {
        "LAUNCH_RUN": record.run_id, "LAUNCH_NAME": record.name or "", "LAUNCH_EVENT": "lost", "LAUNCH_EXIT_CODE": "",
        "LAUNCH_CAUSE": f"a host of the run could not reach its controller on {own} for {span(find_redial(request))}",
    }  # fmt: skip
    return Notice(request.notify, variables, own)


def _complain(console: Console, error: OSError) -> None:
    text = f"can't write {error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    console.say(f"launch: {text}; if this controller dies, the run can't be taken up", Style.STRONG)


def _gather(hub: Hub, record: RunRecord, request: Control, silence_s: float) -> tuple[list[str], int]:
    """Wait for all agents, and then for `go`; return the addresses of this host, and the port.

    Raise BrokenPipeError if the launch host has hung up.
    """
    addresses, port = [address for _, address in network.list_addresses()], hub.listen()
    _send(messages.LISTENING, run=record.run_id, host=socket.gethostname(), addresses=addresses, port=port)
    inbox = Inbox(partial(_give_up, record), silence_s)
    inbox.start()
    _send(messages.GATHERED, missing=hub.wait_for_all(find_patience(request.job)))
    inbox.wait_for_go()
    return addresses, port


class Inbox:
    """What the launch host sends: `go`, and the signals that its user sends with the keyboard."""

    def __init__(self, on_early_end: Callable[[], object], silence_s: float) -> None:
        """on_early_end: called, in a thread, if the launch host hangs up or falls silent before `go`."""
        self._on_early_end = on_early_end
        self._silence_s = silence_s
        self._may_go = threading.Event()

    def start(self) -> None:
        """Read stdin in a thread of its own."""
        start_thread(self._read, "inbox", lambda error: None)

    def wait_for_go(self) -> None:
        """Wait until the run may start."""
        self._may_go.wait()

    def _read(self) -> None:
        decoder = messages.Decoder()
        while data := read_in_time(_READ_BYTES, None if self._may_go.is_set() else self._silence_s):
            for header, _ in decoder.feed(data):
                if header["type"] == messages.GO:
                    self._may_go.set()
                elif header["type"] == messages.SIGNAL and self._may_go.is_set() and header["number"] in _SIGNALS:
                    os.kill(os.getpid(), header["number"])
        if not self._may_go.is_set():
            self._on_early_end()


def _give_up(record: RunRecord) -> NoReturn:
    """End at once: agents end with their connection, and no host may be reported as missing now."""
    record.discard()
    os._exit(HUNG_UP)


def _end(last_line: LastLine, exit_code: int) -> NoReturn:
    last_line.write(str(exit_code))
    os._exit(exit_code)


def _leave(
    console: Console, record: RunRecord, last_line: LastLine, hub: Hub, kept: KeptRun, values: Kept,
    unit: ControllerUnit | None, why: str,
) -> None:  # fmt: skip
    """Leave the streams of the launch host, once what was said is written, and a run that may be restarted is kept."""
    if values.request.options.restarts:
        own = find_own()
        assert own is not None  # nothing else is sent
        kept.begin(values, own.content)
    leave = partial(_leave_streams, console, record, last_line, hub, kept, values.request, unit, why)
    start_thread(leave, "leave", lambda error: None)


def _leave_streams(
    console: Console, record: RunRecord, last_line: LastLine, hub: Hub, kept: KeptRun, request: Control,
    unit: ControllerUnit | None, why: str,
) -> None:  # fmt: skip
    if kept.wait():
        hub.keep(_make_notice(request, record))
        if unit is not None:
            _survive(unit, hub, console, request.host or socket.gethostname())
    console.detach()
    last_line.write(LEFT_QUEUED if why == QUEUED else LEFT)
    redirect_streams(record.folder)


def _survive(unit: ControllerUnit, hub: Hub, console: Console, host: str) -> None:
    """Let the run be taken up after a reboot of this host, and after the death of this process."""
    why = unit.install()
    if why and host not in hub.wait_for_units(0.0):  # its agent has said so
        text = f"{host} doesn't take the run up by itself after a reboot: {why}; fix: {_FIX_UNIT}"
        console.say(f"launch: {text}", Style.TEXT)
    unit.stand_by()


def _warn_of_reboots(hub: Hub, console: Console) -> None:
    """Say which hosts won't rejoin the run by themselves after a reboot."""
    reasons: dict[str, list[str]] = {}
    for host, why in hub.wait_for_units(UNITS_S).items():
        reasons.setdefault(why, []).append(host)
    for why, hosts in reasons.items():
        console.say(f"launch: {describe_no_unit(hosts, why)}", Style.TEXT)


def describe_no_unit(hosts: Sequence[str], why: str) -> str:
    """Return why hosts will start nothing of the run after a boot, and what to do about it."""
    words = "doesn't rejoin the run by itself" if len(hosts) == 1 else "don't rejoin the run by themselves"
    return f"{fold_names(hosts)} {words} after a reboot: {why}; fix: {_FIX_UNIT}"


def _send(kind: str, **fields: Any) -> None:
    os.write(STDOUT, messages.encode(kind, **fields))
