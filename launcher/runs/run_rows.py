"""What `launch ps` says of each run: its state, its age, its size, and its last line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.escapes import one_line
from launcher.output.run_folder import is_run_id
from launcher.runs.incident_log import INCIDENTS
from launcher.runs.run_state import describe_doing, read_doing
from launcher.wording import count

if TYPE_CHECKING:
    from launcher.runs.run_list import ListedRun

_LIVING = ("starting", "running", "unknown")  # states of a run that may live
_ENDED = ("finished", "failed", "stopped", "killed")
_TAIL_BYTES = 8192
_MOST_TEXT = 200
_MOST_PATH = 4096
_MOST_NUMBER = 1 << 32
_MOST_BLAMED = 1000

Record = dict[str, Any]  # the run.json of a run
Row = dict[str, Any]  # the values of one run for --json


def as_row(run: ListedRun, now: float) -> Row:
    """Return the values of one run; now: wall-clock seconds.

    Without those of its run.json, if that has another form: no run may keep the rows of others from being shown.
    """
    record = run.read_record()
    try:
        row = _make_row(run, record, now)
        if read_row(row) is not None:
            return row
    except (AttributeError, TypeError, KeyError, ValueError):
        pass
    return _make_row(run, {"run_id": run.id} if record else {}, now)


def _make_row(run: ListedRun, record: Record, now: float) -> Row:
    attempts = record.get("attempts") or []
    state = run.read_state()
    restarts = asdict(state.restarts) if state is not None else {}
    if run.is_alive and state is None:  # its own count is missing
        restarts = {"used": sum(attempt.get("outcome") != "port" for attempt in attempts)}
    return {
        "run": run.id,
        "name": run.controller.name,
        "state": describe_state(run, record),
        "exit_code": None if run.is_alive or run.end is None else run.end.exit_code,
        "attempts": len(attempts),
        "doing": run.read_doing(now),
        "restarts": restarts.get("used"),
        "restarts_without_progress": restarts.get("without_progress"),
        "restarts_left": restarts.get("left"),
        "age_s": round(max(0.0, now - run.controller.began_at), 1),
        "nodes": [node.get("nproc") for node in (record.get("plan") or {}).get("nodes", [])],
        "hosts": [node.get("host") for node in (record.get("plan") or {}).get("nodes", [])],
        "launch_host": record.get("launch_host", run.controller.host),
        "controller": run.controller.host,
        "pid": run.controller.pid if run.is_alive else None,
        "logs": run.controller.folder,
        "can_continue": run.can_be_taken_up,
        "blamed": [
            [host, what, max(0.0, round(now - datetime.fromisoformat(attempt["ended_at"]).timestamp(), 1))]
            for attempt in attempts
            for host, what in attempt.get("blamed", {}).items()
        ],
        "last_line": find_last_line(run, record),
    }


def read_row(found: object) -> Row | None:
    """Return the values that `as_row` gave on another machine, their texts cleaned; None if these can't be such."""
    if not isinstance(found, dict) or not all(is_form(found.get(key)) for key, is_form in _FORMS.items()):
        return None
    return {key: _clean(found.get(key)) for key in _FORMS} | {"doing": read_doing(found.get("doing"))}


def _clean(value: object) -> object:
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return one_line(value.encode("utf-8", "replace").decode(), _MOST_PATH) if isinstance(value, str) else value


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _or_none(is_form: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_form(value)


def _is_blame(value: object) -> bool:
    """Tell whether this is a host, what went wrong with it, and how many seconds ago."""
    match value:
        case [str(), what, ago_s]:
            return what in INCIDENTS and _is_number(ago_s)
    return False


_FORMS: Mapping[str, Callable[[object], bool]] = {
    "run": lambda value: isinstance(value, str) and is_run_id(value),
    "name": _or_none(_is_text),
    "state": lambda value: value in (*_LIVING, *_ENDED),
    "exit_code": _or_none(_is_count),
    "attempts": _is_count,
    "doing": lambda value: value is None or read_doing(value) is not None,
    "restarts": _or_none(_is_count),
    "restarts_without_progress": _or_none(_is_count),
    "restarts_left": _or_none(_is_count),
    "age_s": _is_number,
    "nodes": lambda value: isinstance(value, list) and all(map(_or_none(_is_count), value)),
    "hosts": _or_none(lambda value: isinstance(value, list) and all(map(_or_none(_is_text), value))),
    "launch_host": _or_none(_is_text),
    "controller": _is_text,
    "pid": _or_none(_is_count),
    "logs": _or_none(_is_text),
    "can_continue": _or_none(lambda value: isinstance(value, bool)),
    "blamed": _or_none(
        lambda value: isinstance(value, list) and len(value) <= _MOST_BLAMED and all(map(_is_blame, value))
    ),
    "last_line": _is_text,
}


def make_unknown_row(run_id: str, what_is_known: str) -> Row:
    """Return the values of a run elsewhere of which its host has told nothing."""
    known = {"run": run_id, "state": "unknown", "attempts": 0, "age_s": 0.0, "nodes": [], "controller": ""}
    return {**dict.fromkeys(_FORMS), **known, "last_line": what_is_known}


def may_live(row: Mapping[str, Any]) -> bool:
    """Tell whether the run of a row may still live, or live again."""
    return row["state"] in _LIVING or bool(row["can_continue"])


def describe_state(run: ListedRun, record: Record) -> str:
    """Return `starting`, `running`, `finished`, `failed`, `stopped`, `killed` or `unknown`."""
    if run.is_alive:
        return "running" if record else "starting"
    if run.end is None:
        return "unknown" if run.is_alive is None else "killed"
    if run.end.is_stopped:
        return "stopped"
    return "finished" if run.end.exit_code == 0 else "failed"


def describe_row(row: Mapping[str, Any]) -> str:
    """Return what the run does, or how it ended: `running (1 restart used)`, `waiting for g2 (4 min)`, `failed (7)`."""
    if row["doing"] is not None and (row["doing"]["what"] != "running" or row["doing"]["odd"]):
        return describe_doing(row["doing"])
    if row["restarts"]:
        return f"{row['state']} ({count(row['restarts'], 'restart')} used)"
    return f"failed ({row['exit_code']})" if row["state"] == "failed" else str(row["state"])


def find_last_line(run: ListedRun, record: Record) -> str:
    """Return the cause of a run that failed, or else the last line that one of its ranks wrote."""
    if run.can_be_taken_up:
        return f"launch rejoin {run.id} continues it: its controller died"
    result = {} if run.is_alive else record.get("result") or {}
    cause = result.get("cause")
    if cause is None and result.get("error"):
        return str(result["error"]).partition("\n")[0][:_MOST_TEXT]
    if cause is not None:
        rank = "" if cause.get("rank") is None else f" rank {cause['rank']}"
        explained = [(cause.get("explanation") or {}).get("cause")]
        said = [cause.get("text"), *(explained if explained[0] else (cause.get("last_lines") or [])[-1:])]
        reason = ": ".join(each.strip() for each in (cause.get("traceback") or [])[-1:] or filter(None, said))
        return f"{cause.get('host')}{rank}: {reason}"[:_MOST_TEXT]
    hosts = [host for attempt in record.get("attempts") or [] for host in attempt.get("hosts", [])]
    paths = [*run.folder.glob("node_*.log")]
    with contextlib.suppress(OSError):
        for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
            lines = _read_tail(path, hosts)
            if lines:
                return lines[-1][:_MOST_TEXT]
    return ""


def _read_tail(path: Path, hosts: list[str]) -> list[str]:
    from launcher.output.log_reader import LogFile  # the start of a run needs none

    log = LogFile(path, hosts, _TAIL_BYTES)
    lines = [line for line in log.read() if line.host is not None]
    log.close()
    return [
        f"[{line.host}{'' if line.rank is None else f':{line.rank}'}] {line.text.decode('utf-8', 'replace')}"
        for line in lines
    ]
