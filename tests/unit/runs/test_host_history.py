"""What is said of hosts from the records of earlier runs, for how long, and whose word counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import pytest

from launcher.runs import host_history
from launcher.runs.run_json import EndedAttempt, Result
from launcher.runs.run_list import CONTROLLER, ORIGIN, Controller, RunList, claim_place

DAY_S = 86400.0
NOW = 1_800_000_000.0
ENDED = Result(exit_code=1, interrupted_by=None, time_limit=None, error=None, cause=None)


@pytest.fixture
def runs(tmp_path: Path) -> RunList:
    return RunList(tmp_path / "state" / "runs")


def add(runs: RunList, run_id: str, *attempts: tuple[float, Mapping[str, str | None]]) -> Path:
    """List a run with these attempts: each has its time, and its hosts with what went wrong with them."""
    folder = runs.base.parent / "logs" / run_id
    folder.mkdir(parents=True)
    records = []
    for at, hosts in attempts:
        blamed = {host: what for host, what in hosts.items() if what is not None}
        ended_at = datetime.fromtimestamp(at, timezone.utc).isoformat()
        ended = EndedAttempt(
            hosts=(*hosts,), began_at=ended_at, ended_at=ended_at, outcome="host", blamed=blamed, result=ENDED
        )
        records.append(ended.as_record())
    (folder / "run.json").write_text(json.dumps({"run_id": run_id, "attempts": records}))
    assert claim_place(runs.base, run_id)
    controller = Controller(run_id, None, str(folder), "laptop", "", 1, 2, attempts[0][0])
    (runs.base / run_id / CONTROLLER).write_text(json.dumps(asdict(controller)))
    return folder / "run.json"


def say(runs: RunList, days: float = 0) -> dict[str, str]:
    return host_history.describe(runs, ["gpu1", "gpu4"], NOW + days * DAY_S)


def test_what_is_said_of_a_host(runs: RunList) -> None:
    assert say(runs) == {}
    add(runs, "r1", (NOW - 3 * DAY_S, {"gpu1": None, "gpu4": "lost"}))
    assert say(runs) == {"gpu4": "lost in its last run, the last time 3 days ago"}
    add(runs, "r2", (NOW - 2 * DAY_S, {"gpu1": None, "gpu4": "lost"}))
    add(runs, "r3", (NOW - DAY_S, {"gpu1": None, "gpu4": None}))
    assert say(runs) == {"gpu4": "lost in 2 of its last 3 runs, the last time 2 days ago"}


@pytest.mark.parametrize(
    ("ago_s", "words"),
    [(10, "1 minute ago"), (600, "10 minutes ago"), (7200, "2 hours ago"), (3 * DAY_S, "3 days ago")],
)
def test_when(runs: RunList, ago_s: float, words: str) -> None:
    add(runs, "r1", (NOW - ago_s, {"gpu4": "lost"}))
    assert say(runs)["gpu4"].endswith(f"the last time {words}")


def test_old_incidents_are_forgotten(runs: RunList) -> None:
    add(runs, "r1", (NOW, {"gpu4": "lost"}))
    assert say(runs, 15)
    assert not say(runs, 17)


def test_attempts_of_one_run_count_once(runs: RunList) -> None:
    """However often it tries; each kind of incident counts at its last time."""
    outages = [(NOW - DAY_S + attempt, {"gpu4": "lost"}) for attempt in range(20)]
    add(runs, "r1", *outages, (NOW - 7200, {"gpu1": None, "gpu4": None}), (NOW - 3600, {"gpu4": "failed its checks"}))
    assert say(runs) == {"gpu4": "lost or failed its checks in its last run, the last time 1 hour ago"}
    assert say(runs, 14)


def test_how_many_runs_are_looked_at(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of each host, and so many records as are read in no time."""
    add(runs, "r0", (NOW - 1000, {"gpu1": "lost", "gpu4": "lost"}))
    for number in range(9):
        add(runs, f"s{number}", (NOW - 900 + number, {"gpu4": None}))
    assert sorted(say(runs)) == ["gpu1", "gpu4"]
    add(runs, "t", (NOW - 800, {"gpu4": None}))
    assert sorted(say(runs)) == ["gpu1"]
    newest = add(runs, "u", (NOW - 700, {"gpu9": None})).stat().st_size
    monkeypatch.setattr(host_history, "_MOST_BYTES", 11 * newest)
    assert say(runs) == {}
    monkeypatch.setattr(host_history, "_MOST_BYTES", 13 * newest)
    assert sorted(say(runs)) == ["gpu1"]


@pytest.mark.parametrize("content", ["", "[]", '{"attempts": 7}', '{"attempts": [{"hosts": 1}]}', "{", "[" * 100_000])
def test_a_damaged_record_hides_no_other(runs: RunList, content: str) -> None:
    add(runs, "r1", (NOW - DAY_S, {"gpu4": "lost"}))
    add(runs, "r2", (NOW, {"gpu4": "lost"})).write_text(content)
    assert say(runs) == {"gpu4": "lost in its last run, the last time 24 hours ago"}


def test_what_others_could_have_written(runs: RunList, tmp_path: Path) -> None:
    add(runs, "r1", (NOW - DAY_S, {"gpu4": "lost"}))
    tmp_path.chmod(0o777)
    assert say(runs) == {}
    tmp_path.chmod(0o700)
    assert [*say(runs)] == ["gpu4"]


def test_words_of_another_version(runs: RunList) -> None:
    add(runs, "r1", (NOW - DAY_S, {"gpu1": "burned", "gpu4": "lost"}))
    assert [*say(runs)] == ["gpu4"]


def test_a_clock_that_was_a_year_ahead(runs: RunList) -> None:
    add(runs, "r1", (NOW + 365 * DAY_S, {"gpu1": "lost"}))
    assert say(runs) == {} and "gpu1" in say(runs, days=365)


def test_hosts_of_a_demo_have_names_that_others_may_have(runs: RunList) -> None:
    for run_id, command in (("r1", "demo"), ("r2", "run")):
        add(runs, run_id, (NOW - DAY_S, {"gpu4": "lost"}))
        runs.keep(run_id, ORIGIN, json.dumps({"command": command}).encode())
    assert say(runs) == {"gpu4": "lost in its last run, the last time 24 hours ago"}


def test_only_the_newest_runs_are_read(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_history, "_MOST_ENTRIES", 1)
    add(runs, "20261120-091233", (NOW - DAY_S, {"gpu4": "lost"}))
    assert say(runs) == {"gpu4": "lost in its last run, the last time 24 hours ago"}
    add(runs, "20261121-091233", (NOW - DAY_S, {"gpu1": None}))
    assert say(runs) == {}
