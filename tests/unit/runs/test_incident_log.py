"""What is remembered of hosts, for how long, and who may write it."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.runs.incident_log import IncidentLog

DAY_S = 86400.0
NOW = 1_800_000_000.0


@pytest.fixture
def log(tmp_path: Path) -> IncidentLog:
    return IncidentLog(tmp_path / "state" / "hosts.json")


def say(log: IncidentLog, days: float = 0) -> dict[str, str]:
    return log.describe(["gpu1", "gpu4"], NOW + days * DAY_S)


def test_what_is_said_of_a_host(log: IncidentLog) -> None:
    log.note("r1", NOW - 3 * DAY_S, {"gpu1": None, "gpu4": "lost"})
    assert say(log) == {"gpu4": "lost in its last run, the last time 3 days ago"}
    log.note("r2", NOW - 2 * DAY_S, {"gpu1": None, "gpu4": "lost"})
    log.note("r3", NOW - 1 * DAY_S, {"gpu1": None, "gpu4": None})
    assert say(log) == {"gpu4": "lost in 2 of its last 3 runs, the last time 2 days ago"}


@pytest.mark.parametrize(
    ("ago_s", "words"),
    [(10, "1 minute ago"), (600, "10 minutes ago"), (7200, "2 hours ago"), (3 * DAY_S, "3 days ago")],
)
def test_when(log: IncidentLog, ago_s: float, words: str) -> None:
    log.note("r1", NOW - ago_s, {"gpu4": "lost"})
    assert say(log)["gpu4"].endswith(f"the last time {words}")


def test_blame_decays(log: IncidentLog) -> None:
    log.note("r1", NOW, {"gpu4": "lost"})
    assert say(log, 14)
    assert not say(log, 21)
    for run in ("r2", "r3", "r4"):
        log.note(run, NOW, {"gpu4": "lost"})
    assert say(log, 21)


def test_attempts_of_one_run_count_once(log: IncidentLog) -> None:
    log.note("r1", NOW, {"gpu4": "lost"})
    log.note("r1", NOW, {"gpu4": None})
    log.note("r1", NOW, {"gpu4": "failed its checks"})
    assert say(log)["gpu4"].startswith("lost or failed its checks in its last run")


def test_one_outage_counts_once_however_often_the_run_tries(log: IncidentLog) -> None:
    for attempt in range(20):
        log.note("r1", NOW + attempt, {"gpu4": "lost"})
    assert not say(log, 21)
    for run in range(12):
        log.note(f"s{run}", NOW + 20, {"gpu4": None})
    assert not say(log)


def test_the_file_is_private_and_stays_small(log: IncidentLog, tmp_path: Path) -> None:
    for number in range(50):
        log.note(f"r{number}", NOW, {"gpu4": "lost"})
    (path,) = (tmp_path / "state").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < 1000


@pytest.mark.parametrize("content", ["", "[]", '{"gpu4": 7}', '{"gpu4": [{"run": 1}]}', "{", "[" * 100_000])
def test_a_damaged_file_is_no_error(log: IncidentLog, tmp_path: Path, content: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "hosts.json").write_text(content)
    assert say(log) == {}
    log.note("r1", NOW, {"gpu4": "lost"})
    assert list(say(log)) == ["gpu4"]


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = IncidentLog(tmp_path / "file" / "hosts.json")
    log.note("r1", NOW, {"gpu4": "lost"})
    with pytest.raises(LauncherError, match=r"can't write .*hosts.json"):
        log.forget(["gpu4"], NOW)


def note_many(path: Path, number: int) -> None:
    log = IncidentLog(path)
    for host in range(20):
        log.note(f"r{number}", NOW, {f"n{number}-{host}": "lost"})


def test_several_runs_may_write(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(note_many, [path] * 4, range(4)))
    names = [f"n{number}-{host}" for number in range(4) for host in range(20)]
    assert len(IncidentLog(path).describe(names, NOW)) == 80
    assert {each.name for each in tmp_path.iterdir()} == {"hosts.json", "hosts.lock"}


def test_what_others_could_have_written(log: IncidentLog, tmp_path: Path) -> None:
    log.note("r1", NOW - DAY_S, {"gpu4": "lost"})
    tmp_path.chmod(0o777)
    assert say(log) == {}
    tmp_path.chmod(0o700)
    assert [*say(log)] == ["gpu4"]


def test_what_was_forgotten_does_not_come_back(log: IncidentLog) -> None:
    log.note("r1", NOW - 600, {"gpu1": "lost", "gpu4": "lost"})
    assert log.forget(["gpu4", "gpu9"], NOW) == ["gpu4"]
    log.note("r1", NOW - 300, {"gpu4": "lost", "gpu9": "lost"})
    assert [*say(log)] == ["gpu1"]
    log.note("r2", NOW + 300, {"gpu4": "lost"})
    assert say(log, 400 / DAY_S)["gpu4"] == "lost in its last run, the last time 2 minutes ago"


def test_a_clock_that_was_a_year_ahead(log: IncidentLog) -> None:
    log.note("r1", NOW + 365 * DAY_S, {"gpu1": "lost"})
    assert say(log) == {} and "gpu1" in say(log, days=365)


def test_a_file_of_an_earlier_version(log: IncidentLog, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    old = {"gpu4": [{"run": "r1", "at": NOW - DAY_S, "what": "lost"}]}
    (tmp_path / "state" / "hosts.json").write_text(json.dumps(old))
    assert [*say(log)] == ["gpu4"]
