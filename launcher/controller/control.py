"""Control a run on this host, for a launch host that may leave.

Until the launch host says `go`, nothing is started, and its end ends this process. From then on this is a `launch` like
any other, which shows its output there for as long as it can.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher.concurrency import start_thread
from launcher.controller.orders import (
    GATHERED,
    HUNG_UP,
    LEFT,
    LEFT_QUEUED,
    LISTENING,
    SIGNAL,
    Control,
    LastLine,
    find_patience,
    read_in_time,
)  # fmt: skip
from launcher.controller.rejoin import watch_agents
from launcher.errors import UsageError
from launcher.hosts.entering import already_inside
from launcher.node import messages
from launcher.node.facts import network
from launcher.output.console import Console
from launcher.output.lines import STDOUT
from launcher.output.log_writer import redirect_streams, warn_of_little
from launcher.output.output_streams import OutputStreams
from launcher.output.run_folder import RunRecord, create_record
from launcher.runs import host_history
from launcher.runs.execution import execute_job, listed
from launcher.runs.run_list import RunList, find_state, own_state
from launcher.runs.run_request import QUEUED, RunRequest
from launcher.transports.agents.hub import LEAVE_S, Hub, Notice

_READ_BYTES = 4096
_END_S = 1.0  # for an agent to end that is connected
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
        host=request.host,
    )  # fmt: skip
    hub, is_changed = _make_hub(request, record)
    try:
        addresses, port = _gather(hub, record, request, silence_s)
        hub.go()
        console.transcribe(record.transcript)
        with listed(runs, record, is_needed=True) as entry:
            watch_agents(request, hub, entry, is_changed, addresses, port, variables=variables, say=console.say)
            for line in warn_of_little(record.folder, request.host or socket.gethostname()):
                console.say(line)
            # What this machine knows of earlier runs, beside what the launch host does.
            known = host_history.describe(runs, [each.name for each in hosts], time.time())
            run = RunRequest(
                request.job, already_inside(request.hosts), lambda hosts, say: hub.open_transport(), record, console,
                request.options, spares=already_inside(request.spares), incidents={**known, **request.incidents},
                leave=partial(_leave, console, record, last_line), can_reach=partial(_can_reach, hub),
            )  # fmt: skip
            running = execute_job(
                run, entry, variables=variables, notify=request.notify, end_process=partial(_end, last_line)
            )  # fmt: skip
            result = asyncio.run(running)
        return result.exit_code, record.has_begun
    finally:
        if not record.has_begun:
            record.discard()
        # Without restarts, an agent that was cut off has ended by itself.
        hub.close(LEAVE_S if request.options.restarts else _END_S)
        console.close()  # last: a terminal may be blocked for ever


def _own_logs(state: Path) -> None:
    try:
        own_state(state, "logs")
    except OSError as error:
        text = f"can't keep the logs in {error.filename or state} on {socket.gethostname()}: {error.strerror}"
        raise UsageError(text, "set XDG_STATE_HOME in its rc files to a directory that only you can write") from None


def _make_hub(request: Control, record: RunRecord) -> tuple[Hub, threading.Event]:
    """Return the hub of a run's agents, and what is set whenever one of them comes or goes."""
    is_changed = threading.Event()
    may_rejoin = bool(request.options.restarts)
    hub = Hub(
        record.run_id, [host.name for host in (*request.hosts, *request.spares)], request.credentials,
        silence_s=request.job.timeouts.silence_s, on_change=is_changed.set, may_rejoin=may_rejoin,
        notice=_make_notice(request, record) if may_rejoin else None,
    )  # fmt: skip
    return hub, is_changed


def _make_notice(request: Control, record: RunRecord) -> Notice | None:
    """Return what a host tells the user if it can't reach this controller any more."""
    if request.notify is None:
        return None
    own = request.host or socket.gethostname()
    variables = {
        "LAUNCH_RUN": record.run_id, "LAUNCH_NAME": record.name or "", "LAUNCH_EVENT": "lost", "LAUNCH_EXIT_CODE": "",
        "LAUNCH_CAUSE": f"a host of the run can't reach its controller on {own} any more",
    }  # fmt: skip
    return Notice(request.notify, variables, own)


def _can_reach(hub: Hub, names: Collection[str]) -> bool:
    return all(map(hub.has, names))


def _gather(hub: Hub, record: RunRecord, request: Control, silence_s: float) -> tuple[list[str], int]:
    """Wait for all agents, and then for `go`; return the addresses of this host, and the port.

    Raise BrokenPipeError if the launch host has hung up.
    """
    addresses, port = [address for _, address in network.list_addresses()], hub.listen()
    _send(LISTENING, run=record.run_id, host=socket.gethostname(), addresses=addresses, port=port)
    inbox = Inbox(partial(_give_up, record), silence_s)
    inbox.start()
    _send(GATHERED, missing=hub.wait_for_all(find_patience(request.job)))
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
                elif header["type"] == SIGNAL and self._may_go.is_set() and header["number"] in _SIGNALS:
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


def _leave(console: Console, record: RunRecord, last_line: LastLine, why: str) -> None:
    """Leave the streams of the launch host; a terminal that is blocked delays no heartbeat."""

    def leave() -> None:
        console.detach()
        last_line.write(LEFT_QUEUED if why == QUEUED else LEFT)
        redirect_streams(record.folder)

    start_thread(leave, "leave", lambda error: None)


def _send(kind: str, **fields: Any) -> None:
    os.write(STDOUT, messages.encode(kind, **fields))
