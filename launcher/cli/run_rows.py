"""What there is to say of each run, asked where it is controlled, of all hosts at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import NoneType
from typing import TYPE_CHECKING, Any

from launcher.cli.run_place import prepare, read_runs, read_ways
from launcher.cli.state_directory import open_planted_runs
from launcher.commands.ps import as_row
from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.unreachable import failure_lines
from launcher.runs.run_list import is_run_id

if TYPE_CHECKING:
    from launcher.controller.planted_runs import PlantedRun, Way
    from launcher.controller.remote_launcher import RemoteLauncher

Row = dict[str, Any]  # the values of one run for --json
_KINDS: Mapping[str, tuple[type, ...]] = {
    "run": (str,), "name": (str, NoneType), "state": (str,), "exit_code": (int, NoneType), "restarts": (int, NoneType),
    "age_s": (int, float), "nodes": (list,), "controller": (str,), "last_line": (str,),
}  # fmt: skip
_Rows = tuple[list[Row], list[str]]  # the newest first, and lines about hosts that don't answer


def read_rows() -> _Rows:
    """Return the runs that were started on this machine."""
    (planted, listed), now = read_runs(), time.time()
    rows = [as_row(run, now) for run in listed]
    answers, failures = _ask_all({run.way: None for run in planted if run.row is None})
    for run in planted:
        rows_there = [{**run.row, "run": run.run_id}] if run.row is not None else answers.get(run.way, [])
        found = next((row for row in rows_there if row["run"] == run.run_id), None)
        if run.row is None and found is not None and not may_live(found):
            open_planted_runs().note_end(run, found)
        rows.append(_complete(run, found, now, is_answered=run.way in answers))
    return sorted(rows, key=lambda row: float(row["age_s"])), failures


def read_rows_of(hosts: str, ssh_config: Path | None) -> _Rows:
    """Return the runs that these hosts control."""
    answers, failures = _ask_all(dict.fromkeys(read_ways(hosts, "--hosts", ssh_config)))
    rows: dict[tuple[str, str], Row] = {}
    for row in (row for found in answers.values() for row in found):
        place = row["controller"], row["run"]  # with one home directory for all hosts, each of them lists all runs
        if place not in rows or rows[place]["state"] == "unknown":
            rows[place] = row
    return sorted(rows.values(), key=lambda row: float(row["age_s"])), failures


def may_live(row: Row) -> bool:
    """Tell whether the run of a row may still live."""
    return row["state"] in ("starting", "running", "unknown")


def _complete(run: PlantedRun, found: Row | None, now: float, *, is_answered: bool) -> Row:
    """Return the row of a planted run; without an answer of its host only what is known here."""
    age_s = round(now - run.began_at, 1)
    why = "knows nothing of it" if is_answered else "doesn't answer"
    if found is not None:
        return {**found, "run": run.id, "controller": run.way.name, "age_s": age_s}
    return {
        "run": run.id, "name": run.name, "state": "unknown", "exit_code": None,
        "attempts": 0, "restarts": None, "age_s": age_s, "nodes": [], "launch_host": None,
        "controller": run.way.name, "pid": None, "logs": None,
        "last_line": f"{run.way.name} {why}",
    }  # fmt: skip


def _ask_all(ways: dict[Way, None]) -> tuple[dict[Way, list[Row]], list[str]]:
    answers: SimpleQueue[tuple[Way, list[Row] | HostFailure]] = SimpleQueue()
    for way in ways:
        start_thread(_asker(way, answers), f"ask {way.name}", lambda error: None)
    found: dict[Way, list[Row]] = {}
    failures: list[HostFailure] = []
    for _ in ways:
        way, answer = answers.get()
        if isinstance(answer, HostFailure):
            failures.append(answer)
        else:
            found[way] = answer
    return found, failure_lines(failures) if failures else []


def _asker(way: Way, answers: SimpleQueue[tuple[Way, list[Row] | HostFailure]]) -> Callable[[], object]:
    try:
        connect = prepare(way)
    except LauncherError as error:  # such as an ssh_config that was removed since
        failure = HostFailure(way.name, HostFailureKind.CONFIGURATION, error.message, error.fix)
        return lambda: answers.put((way, failure))
    return lambda: answers.put((way, _ask(way, connect)))


def _ask(way: Way, connect: Callable[[], RemoteLauncher]) -> list[Row] | HostFailure:
    """Return what a host answers, or why it doesn't: whoever waits must get something."""
    from launcher.controller import requests
    from launcher.output.view import look_here
    from launcher.transports.base import TransportError

    try:
        launcher = connect()
        try:
            launcher.ask(requests.List(), look_here(os.environ))
            return read_answer(launcher.read_output())
        finally:
            launcher.close()
    except TransportError as error:
        return error.failure
    except LauncherError as error:
        return HostFailure(way.name, HostFailureKind.CONFIGURATION, error.message, error.fix)
    except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
        return HostFailure(way.name, HostFailureKind.CONNECTION, f"the connection was lost: {error!r}")


def read_answer(data: bytes) -> list[Row]:
    """Return the rows in what a host has answered, without those that can't be rows; raise ValueError for no JSON."""
    found = json.loads(data or b"[]")
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and _is_row(row)]


def _is_row(row: Row) -> bool:
    return is_run_id(str(row.get("run"))) and all(isinstance(row.get(key), kinds) for key, kinds in _KINDS.items())
