"""Which runs there are, and what there is to say of each, asked where it is controlled, of all hosts at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from launcher.cli.state_directory import open_planted_runs, open_run_list
from launcher.commands.ps import LIVING, Row, as_row, read_row
from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.unreachable import failure_lines
from launcher.runs.run_list import ListedRun
from launcher.wording import count

if TYPE_CHECKING:
    from launcher.controller.planted_runs import PlantedRun, Way
    from launcher.controller.remote_launcher import RemoteLauncher

CONNECT_TIMEOUT_S = 10.0

_UNREADABLE = "sent a row that can't be read"
_Rows = tuple[list[Row], list[str]]  # the newest first, and lines about hosts that don't answer
_Answer = tuple[list[Row], int]  # of a host, and how many can't be read


def read_runs() -> tuple[list[PlantedRun], list[ListedRun]]:
    """Return the runs of this machine that another one controls, and all others, each list with the newest first.

    A home directory that all hosts share lists some of them twice.
    """
    listed = open_run_list().read()
    here = {run.id for run in listed if run.is_here}
    planted = [run for run in open_planted_runs().read() if run.id not in here]
    elsewhere = {run.id for run in planted}
    return planted, [run for run in listed if run.id not in elsewhere]


def read_ways(hosts: str, source: str, ssh_config: Path | None) -> list[Way]:
    """Return the ways to these hosts; source: the option that names them."""
    from launcher.controller.planted_runs import Way
    from launcher.hosts.hostfiles import parse_hosts

    config = str(ssh_config.absolute()) if ssh_config is not None else None
    return [Way(host.name, host.user, host.port, ssh_config=config) for host in parse_hosts(hosts, source, "port")]


def read_rows() -> _Rows:
    """Return the runs that were started on this machine."""
    (planted, listed), now = read_runs(), time.time()
    rows = [as_row(run, now) for run in listed]
    answers, failures = _ask_all({run.way: None for run in planted if run.row is None})
    for run in planted:
        rows_there, unread = ([{**run.row}], 0) if run.row is not None else answers.get(run.way, ([], 0))
        found = next((row for row in rows_there if row["run"] == run.id), None)
        if run.row is None and found is not None and not may_live(found):
            open_planted_runs().note_end(run, found)
        why = "doesn't answer" if run.way not in answers else "knows nothing of it" if not unread else _UNREADABLE
        rows.append(_complete(run, found, now, why))
    return sorted(rows, key=lambda row: float(row["age_s"])), failures


def read_rows_of(hosts: str, ssh_config: Path | None) -> _Rows:
    """Return the runs that these hosts control."""
    answers, failures = _ask_all(dict.fromkeys(read_ways(hosts, "--hosts", ssh_config)))
    rows: dict[tuple[str, str], Row] = {}
    for row in (row for found, _ in answers.values() for row in found):
        place = row["controller"], row["run"]  # with one home directory for all hosts, each of them lists all runs
        if place not in rows or rows[place]["state"] == "unknown":
            rows[place] = row
    return sorted(rows.values(), key=lambda row: float(row["age_s"])), failures


def may_live(row: Row) -> bool:
    """Tell whether the run of a row may still live."""
    return row["state"] in LIVING


def _complete(run: PlantedRun, found: Row | None, now: float, why: str) -> Row:
    """Return the row of a planted run; if its host gave none only what is known here, and why."""
    age_s = round(max(0.0, now - run.began_at), 1)
    if found is not None:
        return {**found, "name": run.name, "controller": run.way.name, "age_s": age_s}
    return {
        "run": run.id, "name": run.name, "state": "unknown", "exit_code": None,
        "attempts": 0, "restarts": None, "age_s": age_s, "nodes": [], "launch_host": None,
        "controller": run.way.name, "pid": None, "logs": None,
        "last_line": f"{run.way.name} {why}",
    }  # fmt: skip


def _ask_all(ways: dict[Way, None]) -> tuple[dict[Way, _Answer], list[str]]:
    answers: SimpleQueue[tuple[Way, _Answer | HostFailure]] = SimpleQueue()
    for way in ways:
        start_thread(_asker(way, answers), f"ask {way.name}", lambda error: None)
    found: dict[Way, _Answer] = {}
    failures: list[HostFailure] = []
    for _ in ways:
        way, answer = answers.get()
        if isinstance(answer, HostFailure):
            failures.append(answer)
        else:
            found[way] = answer
    unread = [
        f"launch: {count(number, 'row')} of {way.name} can't be read" for way, (_, number) in found.items() if number
    ]
    return found, [*failure_lines(failures), *unread]


def _asker(way: Way, answers: SimpleQueue[tuple[Way, _Answer | HostFailure]]) -> Callable[[], object]:
    try:
        connect = prepare(way)
    except LauncherError as error:  # such as an ssh_config that was removed since
        failure = HostFailure(way.name, HostFailureKind.CONFIGURATION, error.message, error.fix)
        return lambda: answers.put((way, failure))
    return lambda: answers.put((way, _ask(way, connect)))


def _ask(way: Way, connect: Callable[[], RemoteLauncher]) -> _Answer | HostFailure:
    """Return what a host answers, or why it doesn't: whoever waits must get something."""
    from launcher.controller import requests
    from launcher.output.output_streams import find_streams
    from launcher.transports.base import TransportError

    try:
        launcher = connect()
        try:
            launcher.ask(requests.List(), find_streams(os.environ))
            return read_answer(launcher.read_output())
        finally:
            launcher.close()
    except TransportError as error:
        return error.failure
    except LauncherError as error:
        return HostFailure(way.name, HostFailureKind.CONFIGURATION, error.message, error.fix)
    except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
        return HostFailure(way.name, HostFailureKind.CONNECTION, f"the connection was lost: {error!r}")


def read_answer(data: bytes) -> _Answer:
    """Return the rows in what a host has answered, and how many others can't be read; raise ValueError for no JSON."""
    found = json.loads(data or b"[]")
    all_rows = found if isinstance(found, list) else [found]
    rows = [row for each in all_rows if (row := read_row(each)) is not None]
    return rows, len(all_rows) - len(rows)


def prepare(way: Way) -> Callable[[], RemoteLauncher]:
    """Return what connects, which any thread may do; this may ask for a password."""
    from launcher.cli.option_groups import TransportOptions
    from launcher.cli.selection import choose_opener
    from launcher.controller.remote_launcher import RemoteLauncher
    from launcher.session.settings import loader_pythons

    options = TransportOptions(transport=way.transport, ssh_config=Path(way.ssh_config) if way.ssh_config else None)
    hosts = [way.host]
    open_transport = choose_opener(options, hosts, env={}, python=way.python, silence_s=0.0)
    transport = open_transport(hosts, lambda text: None)
    return lambda: RemoteLauncher(transport, way.host, loader_pythons(way.python), CONNECT_TIMEOUT_S)
