"""What may be done with a run that another process controls: watch it, print its logs, wait for it, stop it.

Each is a function of the run and of the output streams of whoever asked, and returns an exit code. It is called here,
or where the run is controlled: see launcher.controller.orders.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, UsageError
from launcher.output.lines import STDERR
from launcher.output.log_reader import (
    LOOK_S,
    Choice,
    ExactPrinter,
    JsonPrinter,
    LogFile,
    LogLine,
    LogPrinter,
    RunLogs,
    ScreenPrinter,
    find_since,
    follow,
)
from launcher.output.log_writer import TRANSCRIPT, find_live_output
from launcher.output.output_streams import OutputStreams
from launcher.output.plain_messages import tell
from launcher.runs.kept_run import KeptRun, start_controller
from launcher.runs.run_list import ListedRun
from launcher.runs.run_state import Activity
from launcher.wording import fold_ranks

_LAST_LINES = 20
_MOST_BLOCK = 24  # lines before these, among which the first one of a message is looked for
_TAIL_BYTES = 1 << 16
_AGAIN_S = 0.5  # between the two signals of `launch stop --now`
_UNHEARD_S = 10.0  # the same, if nothing shows that the first one was heard: they would be one to a controller
_SUSPENDED_S = 3.0  # for a process that somebody has suspended for a moment
_SUSPENDED = "is suspended"
_FAILED = re.compile("launch: (.*FAILED after |.* could not start|its time in the queue )")
_ENDED = re.compile("launch: (finished in|stopped by) ")


def attach(run: ListedRun, streams: OutputStreams, *, as_json: bool = False, host: str | None = None) -> int:
    """Show the last lines of a run and what follows, until it ends; return its exit code.

    as_json: as objects on stdout, the first of which names the run, and the last one its result. host: how the user
    names the machine that controls it. Ctrl-C raises KeyboardInterrupt, once all that was read is written.
    """
    title, host = f"run {run.id} ({run.name})" if run.name else f"run {run.id}", host or run.controller.host
    if run.is_alive is False:
        tell(f"launch: {title}, which {host} controlled, has ended; its last lines:", streams)
    else:
        doing = f"; {doing}" if (doing := _find_doing(run)) else ""
        tell(f"launch: watching {title}, which {host} controls{doing}; Ctrl-C leaves it running", streams)
    hosts = run.find_hosts()
    printer: LogPrinter = ScreenPrinter(streams, hosts)
    if as_json:
        _emit("attached", run, controller=host, logs=run.controller.folder)
        printer = JsonPrinter(streams, str(run.read_record().get("utc_offset") or "+00:00"))
    live = find_live_output(run.controller.pid, run.controller.run_id) if run.is_alive and run.is_here else None
    logs = RunLogs(run.folder, hosts, Choice(), _TAIL_BYTES, live)
    try:
        for line in choose_last([*deque(logs.read(), _LAST_LINES + _MOST_BLOCK)]):
            printer.print(line)
        printer.flush()
        follow(logs, printer, lambda: is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        raise
    code = _conclude(run, streams, prints=False)
    if as_json:
        record = run.read_record()
        attempts = record.get("attempts") or []
        result = record.get("result") or {"exit_code": code, "error": "the run has no result"}
        _emit("result", run, attempts=len(attempts), hosts=attempts[-1]["hosts"] if attempts else [], **result)
    return code


def _emit(event: str, run: ListedRun, **values: object) -> None:
    """Print an object of --json about a run."""
    from launcher.output.console import dated  # which no other action needs

    print(json.dumps(dated(event, run=run.id, name=run.name, **values)), flush=True)


def choose_last(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return the last lines; a message of `launch` that began before them is there from its first line, or not at all.

    What continues a message is indented.
    """
    kept = lines[-_LAST_LINES:]
    messages = [line for line in kept if line.host is None]
    if not messages or not _continues(messages[0]):
        return kept
    for index in range(len(lines) - len(kept) - 1, -1, -1):
        if lines[index].host is None and not _continues(lines[index]):
            return lines[index:]
    begins = next((index for index, line in enumerate(messages) if not _continues(line)), len(messages))
    partial = set(map(id, messages[:begins]))
    return [line for line in kept if id(line) not in partial]


def _continues(line: LogLine) -> bool:
    return line.text.startswith(b" ")


def _find_doing(run: ListedRun) -> str:
    """Return what a run does now, in words; empty if it has ended, or doesn't tell."""
    doing = run.read_doing(time.time())
    return str(doing) if doing is not None else ""


def ask_for_stacks(run: ListedRun, streams: OutputStreams) -> int:
    """Let the controller of a run print the stacks of its ranks."""
    if not run.is_here:
        tell(f"launch: only {run.controller.host} can ask for the stacks", streams)
    elif is_running(run):
        os.kill(run.controller.pid, signal.SIGQUIT)
    return 0


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """Which lines to print; None: all."""

    follows: bool = False  # until the run has ended
    node: int | None = None
    rank: int | None = None
    attempt: int | None = None
    since_s: float | None = None  # only the last seconds


def print_logs(run: ListedRun, streams: OutputStreams, request: LogsRequest) -> int:
    """Print the lines on stdout; with a rank, its bytes on the streams to which it wrote. Return the exit code."""
    if not run.folder.is_dir():
        raise UsageError(f"the logs in {run.folder} were removed", "see launch ps for other runs")
    record = run.read_record()
    refuse_unknown(run.id, request, record)
    offset = str(record.get("utc_offset") or "+00:00")
    stamp = None if request.since_s is None else find_since(request.since_s, offset, datetime.now(timezone.utc))
    choice = Choice(request.node, request.rank, request.attempt, stamp)
    logs = RunLogs(run.folder, run.find_hosts(), choice)
    printer = LogPrinter(streams) if request.rank is None else ExactPrinter(streams)
    try:
        follow(logs, printer, lambda: request.follows and is_running(run))
    except KeyboardInterrupt:
        printer.flush()
        return 130
    return 0


def refuse_unknown(run_id: str, request: LogsRequest, record: Mapping[str, Any]) -> None:
    """Raise UsageError for a node, a rank or an attempt that a run doesn't have, as its run.json says.

    Of the last attempt it has the nodes; an earlier one may have had more. A run that is followed may start again, and
    before its ranks start it has no record.
    """
    nodes = (record.get("plan") or {}).get("nodes")
    if not nodes:
        return
    attempts = record.get("attempts") or []
    most = max((len(attempt["hosts"]) for attempt in attempts), default=0)
    earlier = range(most) if most > len(nodes) else range(0)
    ranks = {node["first_rank"] + local for node in nodes for local in range(node["nproc"])}
    ranks |= set(range(len(earlier) * nodes[0]["nproc"]))
    used = [attempt["restarts"]["used"] for attempt in attempts if "restarts" in attempt]
    starts = used[-1] + 1 if used else max(1, len(attempts) + ("ended_at" not in record))
    for option, number, known in (
        ("node", request.node, {node["node_rank"] for node in nodes} | set(earlier)),
        ("rank", request.rank, ranks),
        ("attempt", None if request.follows else request.attempt, set(range(starts))),
    ):
        if number is not None and number not in known:
            raise UsageError(
                f"--{option} {number}: run {run_id} has no such {option}", f"choose from {fold_ranks(known)}"
            )


def wait(run: ListedRun, streams: OutputStreams, *, is_one_of_several: bool = False) -> int:
    """Wait until a run has ended, print how, and return its exit code.

    Of one run alone a terminal is told what is waited for, and not a script.
    """
    if is_one_of_several or (run.is_alive and STDERR in streams.terminals):
        doing = _find_doing(run)
        tell(f"launch: waiting for run {run.id}{f', which is {doing}' if doing else ''}", streams)
    while is_running(run):
        time.sleep(LOOK_S)
    return _conclude(run, streams, prints=True)


def stop(run: ListedRun, streams: OutputStreams, *, is_now: bool) -> int:
    """Send the signals of Ctrl-C, once, or twice for `is_now`, wait until the run has ended, and print how.

    A second one kills the ranks, so none is sent if this was asked before without `is_now`. Raise UsageError for a run
    that has ended, unless it was stopped, as by another `launch stop` that was typed at the same time.
    """
    has_ended = run.is_alive is False
    if has_ended and run.end is None and run.is_kept:
        return _stop_without_controller(run, streams, is_now=is_now)
    if has_ended and (run.end is None or not run.end.is_stopped):
        raise UsageError(f"run {run.id} has ended", "see launch ps for those that run")
    if not has_ended and not run.is_here:
        raise UsageError(f"run {run.id} is controlled by {run.controller.host}", "run launch stop there")
    if is_now:
        tell(f"launch: killing the ranks of run {run.id}, as a second Ctrl-C would: they can't save", streams)
    is_asked = has_ended or run.mark_stop()
    if has_ended:
        tell(f"launch: run {run.id} was stopped before", streams)
    elif is_asked and not is_now:
        tell(f"launch: run {run.id} is being stopped already (--now kills its ranks)", streams)
    signals = (0 if is_asked else 1) + is_now
    sent_at, asked_at, is_told = -math.inf, time.monotonic(), False
    while is_running(run):
        passed_s = time.monotonic() - sent_at
        if not is_told and (why := _find_obstacle(run, time.monotonic() - asked_at)):
            is_told, pid = True, run.controller.pid
            tell(
                f"launch: run {run.id} doesn't stop: process {pid} on {run.controller.host}, its launch, {why}", streams
            )
            resume = f"kill -CONT {pid} there; or " if why == _SUSPENDED else ""
            tell(
                f"  fix: {resume}kill -KILL {pid}{'' if resume else ' there'}, after which its hosts end the ranks",
                streams,
            )
        if signals and passed_s > _AGAIN_S and (_is_stopping(run) or passed_s > _UNHEARD_S):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(run.controller.pid, run.controller.stop_signal)
            signals, sent_at = signals - 1, time.monotonic()
        time.sleep(LOOK_S)
    _conclude(run, streams, prints=True)
    return 0


def _find_obstacle(run: ListedRun, passed_s: float) -> str:
    """Return why the process that controls a run may never end it, some seconds after it was asked to; or ""."""
    with contextlib.suppress(OSError):  # no /proc, as on macOS, or it has just ended
        state = Path("/proc", str(run.controller.pid), "stat").read_text("utf-8", "replace").rpartition(") ")[2][:1]
        if state in "Tt" and passed_s > _SUSPENDED_S:
            return _SUSPENDED
    return "doesn't respond" if passed_s > _UNHEARD_S and not _is_stopping(run) else ""


def _is_stopping(run: ListedRun) -> bool:
    """Return whether the controller of a run has written down that it stops the ranks."""
    state = run.read_state()
    return state is not None and state.what is Activity.STOPPING


def _stop_without_controller(run: ListedRun, streams: OutputStreams, *, is_now: bool) -> int:
    """Let nothing take up a run whose controller died, and let its agents wait for it no longer."""
    run.mark_stop()
    with contextlib.suppress(UsageError):  # another one was quicker
        start_controller(run, streams)  # which sees the mark
    now = run.look()
    if now is None or not now.is_alive:
        KeptRun(run.place).remove()
        return 0
    os.kill(now.controller.pid, now.controller.stop_signal)  # it was taken up a moment before
    return stop(now, streams, is_now=is_now)


def find_health(run: ListedRun) -> dict[str, Any]:
    """Return whether the controller of a run lives, the exit code if the run has ended, and which hosts it has lost."""
    is_alive, end = is_running(run), (run.look() or run).end
    if end is None:
        return {"is_alive": is_alive, "exit_code": None, "lost": run.read_missing()}
    lost = (run.read_record().get("result") or {}).get("unreachable", {})  # by now, all agents have left
    return {"is_alive": is_alive, "exit_code": end.exit_code, "lost": [*lost]}


def find_orders(run: ListedRun) -> dict[str, Any]:
    """Return what starts the agents of the hosts that the controller of a run misses."""
    is_alive = is_running(run)
    return {
        "is_alive": is_alive,
        "has_ended": not is_alive and (run.look() or run).end is not None,
        "missing": run.read_missing() if is_alive else [],
        "orders": run.read_orders() if is_alive else [],
    }


def print_value(find: Callable[[ListedRun], object], run: ListedRun, streams: OutputStreams) -> int:
    """Print as JSON what a function says of a run."""
    print(json.dumps(find(run)))
    return 0


def is_running(run: ListedRun) -> bool:
    """Return whether a run still lives; raise UsageError if only another machine can tell."""
    now = run.look()
    if now is not None and now.is_alive is None:
        host = now.controller.host
        raise UsageError(f"only {host} can tell whether run {now.id} still runs", f"use launch on {host}")
    return now is not None and bool(now.is_alive)


def _conclude(run: ListedRun, streams: OutputStreams, *, prints: bool) -> int:
    """Return the exit code of a run that has ended; prints: also its last messages."""
    now = run.look()
    if now is None:
        tell(f"launch: run {run.id} was never started; its launch has said why", streams)
        return EXIT_FAILED
    if now.end is None:
        why = "its launch was killed, and its hosts end it within --silence"
        if now.can_be_taken_up:
            why = f"its controller died\n  fix: launch rejoin {now.id} continues it, and launch stop {now.id} ends it"
        tell(f"launch: run {now.id} has no result: {why}", streams)
        return EXIT_SIGNAL_BASE + signal.SIGKILL
    if prints:
        for line in _find_end(now):
            tell(line, streams)
    return now.end.exit_code


def _find_end(run: ListedRun) -> list[str]:
    """Return the block about the failure, or how a run ended that succeeded or was stopped, and what follows that."""
    lines = [line.text.decode("utf-8", "replace") for line in LogFile(run.folder / TRANSCRIPT, ()).read()]
    has_failed = run.end is not None and run.end.exit_code != 0 and not run.end.is_stopped
    begin = _FAILED if has_failed else _ENDED
    begins = [index for index, line in enumerate(lines) if begin.match(line)]
    return lines[begins[-1] :] if begins else lines[-1:]
