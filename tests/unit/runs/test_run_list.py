"""The list of runs: who lives is looked up, not remembered."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from launcher.errors import LauncherError, UsageError
from launcher.node import system
from launcher.output.run_folder import create_record
from launcher.runs import run_list
from launcher.runs.records import Result
from launcher.runs.run_list import End, ListedRun, RunList, RunListEntry
from launcher.runs.run_state import Activity, RestartCount, RunState
from launcher.session.node_state import Census

NOW = datetime(2026, 11, 20, 9, 12, 33)
HOLDS = """
    import sys, time
    from pathlib import Path
    from launcher.runs.run_list import RunList
    entry = RunList(Path(sys.argv[1])).begin(sys.argv[2], None, Path(sys.argv[3]))
    print(entry.error, flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def _each_start_looks_for_old_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "PRUNE_S", 0.0)


def start(tmp_path: Path, run_id: str) -> subprocess.Popen[bytes]:
    """Start a process that drives a run, and return it once the run is listed."""
    folder = tmp_path / "logs" / run_id
    folder.mkdir(parents=True)
    words = [sys.executable, "-c", textwrap.dedent(HOLDS), str(tmp_path / "runs"), run_id, str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"None\n"
    return process


@contextmanager
def held(runs: RunList, run_id: str, name: str | None, folder: Path, *, is_kept: bool = True) -> Iterator[RunListEntry]:
    """List a run of this process while the block runs."""
    entry = runs.begin(run_id, name, folder)
    assert entry.error is None
    yield entry
    entry.close(is_kept=is_kept)


def no_complaint(path: Path, error: OSError) -> None:
    raise AssertionError(f"{path}: {error}")


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def states(runs: list[ListedRun]) -> list[tuple[str, bool | None]]:
    return [(run.controller.run_id, run.is_alive) for run in runs]


def test_a_run_lives_as_long_as_its_process(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "runs")
    assert runs.read() == []
    first, second = start(tmp_path, "20261120-091233"), start(tmp_path, "20261120-091235")
    assert states(runs.read()) == [("20261120-091235", True), ("20261120-091233", True)]
    assert runs.read()[0].controller.pid == second.pid
    end(first)
    assert states(runs.read()) == [("20261120-091235", True), ("20261120-091233", False)]
    seen = runs.find("20261120-091235")
    end(second)
    assert (now := seen.look()) is not None
    assert (now.is_alive, now.end) == (False, None), "it was killed"
    assert (tmp_path / "runs" / "20261120-091233").stat().st_mode & 0o777 == 0o700


def test_a_run_that_never_started_is_not_listed(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "runs")
    with held(runs, "20261120-091233", None, tmp_path / "logs", is_kept=False):
        assert states(runs.read()) == [("20261120-091233", True)]
    assert runs.read() == []
    assert [*(tmp_path / "runs").iterdir()] == []


def test_a_list_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    entry = RunList(tmp_path / "file" / "runs").begin("r", None, tmp_path)
    assert entry.error is not None and entry.error.strerror
    entry.end(Result(0, 1.0, Census({}, {})))
    entry.close(is_kept=True)


@pytest.mark.parametrize(("word", "run_id"), [
    (None, "20261121-100000"), ("20261120-091233", "20261120-091233"), ("20261120-1", "20261120-101010"),
    ("base", "20261120-091233"),
])  # fmt: skip
def test_which_run_is_meant(tmp_path: Path, word: str | None, run_id: str) -> None:
    runs = RunList(tmp_path / "runs")
    with pytest.raises(UsageError, match="no run was started"):
        runs.find(None)
    for each, name in (("20261120-091233", "base"), ("20261120-101010", None), ("20261121-100000", None)):
        with held(runs, each, name, tmp_path):
            pass
    assert runs.find(word).controller.run_id == run_id
    with pytest.raises(UsageError, match="'20261120' means 2 runs"):
        runs.find("20261120")
    with pytest.raises(UsageError, match="no run 'x'"):
        runs.find("x")


def test_an_id_is_one_run_s_alone(tmp_path: Path) -> None:
    """Wherever its logs are, and whichever machine controls it."""
    runs = RunList(tmp_path / "runs")
    records = [create_record(tmp_path / project, NOW, no_complaint, ids=runs) for project in ("a", "b")]
    planted = RunList(tmp_path / "runs").take_id(NOW, "token")
    records.append(create_record(tmp_path / "b", NOW, no_complaint, ids=runs))
    ids = [records[0].run_id, records[1].run_id, planted, records[2].run_id]
    assert ids == [f"20261120-091233{suffix}" for suffix in ("", "-2", "-3", "-4")]
    records[1].discard()
    assert create_record(tmp_path / "a", NOW, no_complaint, ids=runs).run_id == ids[1]


def test_a_controller_takes_the_id_that_the_launch_host_has_taken(tmp_path: Path) -> None:
    """Its home directory may be the launch host's, with one list for both; without the token it is another run's."""
    run_id = RunList(tmp_path / "runs").take_id(NOW, "token")
    for token, expected in (("other", f"{run_id}-2"), ("", f"{run_id}-3"), ("token", run_id)):
        runs = RunList(tmp_path / "runs", token=token)
        assert create_record(tmp_path / "logs", NOW, no_complaint, ids=runs, run_id=run_id).run_id == expected


def test_ids_that_no_run_took_are_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their launch was killed before the run began."""
    runs = RunList(tmp_path / "runs")
    runs.take_id(NOW, "token")
    runs.claim("20261120-091235")
    with held(runs, "20261120-101010", None, tmp_path):
        assert len([*runs.base.iterdir()]) == 3
    monkeypatch.setattr(run_list, "CLAIMED_S", -1.0)
    with held(runs, "20261120-111111", None, tmp_path):
        assert {path.name for path in runs.base.iterdir()} == {"20261120-101010", "20261120-111111"}


def test_a_name_that_two_runs_have(tmp_path: Path) -> None:
    """It means the one that lives, also if it is the older one; two that live are not guessed between."""
    runs = RunList(tmp_path / "runs")
    with held(runs, "20261120-091233", "base", tmp_path):
        with held(runs, "20261120-091235", "base", tmp_path):
            with pytest.raises(UsageError) as raised:
                runs.find("base")
            assert raised.value.message == "'base' means 2 runs: 20261120-091235, 20261120-091233"
        assert runs.find("base").id == "20261120-091233"
    assert runs.find("base").id == "20261120-091235"


@pytest.mark.parametrize(("changes", "is_alive"), [
    ({"host": "elsewhere", "boot_id": "another"}, None),
    ({"boot_id": "another"}, False),  # this machine was started again
    ({"machine_id": "another", "boot_id": "another"}, None),  # it has the same name
    ({"host": "another container"}, False),
    ({"machine_id": "", "boot_id": "another"}, None),
])  # fmt: skip
@pytest.mark.linux
def test_a_run_of_another_machine_is_not_known_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], is_alive: bool | None
) -> None:
    """Its lock may be kept on that machine alone; how it ended is written for all."""
    monkeypatch.setattr(system, "MACHINE_ID", str(tmp_path / "machine-id"))
    (tmp_path / "machine-id").write_text("0123\n")
    runs = RunList(tmp_path / "runs")
    for run_id in ("ended", "killed"):
        with held(runs, run_id, None, tmp_path) as entry:
            if run_id == "ended":
                entry.end(Result(3, 1.0, Census({}, {})))
        path = tmp_path / "runs" / run_id / "controller.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert [runs.find("ended").is_alive, runs.find("killed").is_alive] == [False, is_alive]


def test_it_is_stopped_once(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "runs")
    with held(runs, "r", None, tmp_path):
        assert [runs.find("r").mark_stop(), runs.find("r").mark_stop()] == [False, True]


def test_a_full_disk_still_takes_how_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is made then, and none grows; what the run did before is not what it does now."""
    runs = RunList(tmp_path / "runs")
    with held(runs, "r", None, tmp_path) as entry:
        entry.note_state(RunState(Activity.RUNNING, 1.8e9, RestartCount()))
        assert runs.find("r").read_state() is not None
        assert not runs.find("r").mark_stop()
        before = {path: path.stat().st_size for path in (tmp_path / "runs" / "r").iterdir()}

        def refuse(*names: object, **more: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "replace", refuse)
        entry.note_state(RunState(Activity.STOPPING, 1.8e9, RestartCount()))
        assert (runs.find("r").end, runs.find("r").read_state()) == (None, None)
        entry.end(Result(130, 1.0, Census({}, {}), interrupted_by=2))
        assert {path: path.stat().st_size for path in (tmp_path / "runs" / "r").iterdir()} == before
        assert runs.find("r").is_alive, "its process has not ended yet"
    assert (runs.find("r").is_alive, runs.find("r").end) == (False, End(130, is_stopped=True))
    monkeypatch.undo()
    with held(runs, "without_state", None, tmp_path) as entry:
        monkeypatch.setattr(Path, "replace", refuse)
        path = runs.find("without_state").place / "controller.json"
        size = path.stat().st_size
        entry.end(Result(7, 1.0, Census({}, {})))
        assert path.stat().st_size == size
    assert runs.find("without_state").end == End(7, is_stopped=False)


@pytest.mark.parametrize("change", ["", "[]", {"began_at": math.inf}, {"pid": None}])
def test_a_damaged_entry_is_none(tmp_path: Path, change: str | dict[str, object]) -> None:
    runs = RunList(tmp_path / "runs")
    with held(runs, "r", None, tmp_path):
        pass
    path = tmp_path / "runs" / "r" / "controller.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change}))
    assert runs.read() == []


def test_what_other_versions_wrote_is_read(tmp_path: Path) -> None:
    """A run that has finished wasn't killed, and one that lives is listed: newer files have more fields, and others.

    An earlier version wrote the end to a file of its own.
    """
    runs = RunList(tmp_path / "runs")
    for run_id in ("newer", "older"):
        with held(runs, run_id, None, tmp_path) as entry:
            entry.end(Result(0, 1.0, Census({}, {})))
    newer, older = (tmp_path / "runs" / run_id / "controller.json" for run_id in ("newer", "older"))
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "more": 1, "state": {"what": "dreaming"}}))
    values = json.loads(older.read_text())
    older.with_name("end.json").write_text(json.dumps(values.pop("end")).ljust(256))
    older.write_text(json.dumps(values))
    assert [run.end for run in runs.read()] == [End(0, is_stopped=False)] * 2


def test_what_ended_long_ago_is_forgotten_and_its_logs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = RunList(tmp_path / "runs")
    logs = tmp_path / "logs"
    logs.mkdir()
    with held(runs, "old", None, logs):
        pass
    with held(runs, "lives", None, logs):
        monkeypatch.setattr(run_list, "KEPT_S", 0.0)
        with held(runs, "newer", None, logs):
            assert {run.controller.run_id for run in runs.read()} == {"lives", "newer"}
    with held(runs, "new", None, logs), held(runs, "other", None, logs):
        assert {run.controller.run_id for run in runs.read()} == {"new", "other"}
    assert logs.is_dir()


def test_a_run_that_was_killed_is_as_old_as_its_last_line(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "runs", tmp_path / "logs")
    process = start(tmp_path, "r")
    process.kill()
    process.wait()
    place, log = tmp_path / "runs" / "r", tmp_path / "logs" / "r" / "node_0.log"
    log.touch()
    for path in (place, place / "controller.json"):
        os.utime(path, (0, 0))
    with held(runs, "other", None, tmp_path):
        assert runs.find("r").death == "its launch was killed"
    os.utime(log, (0, 0))
    with held(runs, "third", None, tmp_path):
        assert [run.id for run in runs.read()] == ["third", "other"]


def test_logs_that_a_list_owns_go_with_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones first, once there is too much of them; never those of a run that lives, or logs elsewhere."""
    runs = RunList(tmp_path / "runs", tmp_path / "logs")
    folders = {name: tmp_path / "logs" / name for name in ("a", "b", "c")} | {"mine": tmp_path / "mine"}
    entries = {}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "node_0.log").write_bytes(bytes(1000))
        entries[name] = runs.begin(name, None, folder)
        if name != "b":
            entries[name].end(Result(0, 1.0, Census({}, {})))
            entries[name].close(is_kept=True)
    monkeypatch.setattr(run_list, "KEPT_BYTES", 1500)
    runs.begin("d", None, tmp_path / "logs" / "d")
    assert {name for name, folder in folders.items() if folder.exists()} == {"mine", "b", "c"}
    assert {run.id for run in runs.read()} == {"mine", "b", "c", "d"}


@pytest.mark.skipif(os.geteuid() != 0, reason="run as root, to make a directory of another user")
def test_a_list_that_another_user_has_made(tmp_path: Path) -> None:
    """As in a sticky directory, where everybody may make one first; its rows name what is run and stopped."""
    state = tmp_path / "state" / "launch"
    state.mkdir(parents=True)
    state.chmod(0o777)
    with held(RunList(state / "runs"), "a", None, tmp_path):
        assert state.stat().st_mode & 0o777 == 0o700
    os.chown(state, 65534, -1)
    text = "it belongs to user nobody, who could replace what is there"
    runs = RunList(state / "runs")
    error = runs.begin("b", None, tmp_path).error
    assert error is not None and (error.filename, error.strerror) == (str(state), text)
    for read in (runs.read, runs.read_all):
        with pytest.raises(LauncherError) as raised:
            read()
        assert raised.value.message == f"can't read the list of runs in {state}: {text}"


def test_a_list_that_another_user_could_replace(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "local" / "state" / "launch" / "runs")
    assert runs.read() == []
    umask = os.umask(0o002)
    try:
        with held(runs, "a", None, tmp_path):
            pass
    finally:
        os.umask(umask)
    levels = [runs.base, *runs.base.parents[:3]]
    assert [path.stat().st_mode & 0o777 for path in levels] == [0o700] * 4
    levels[2].chmod(0o777)
    with pytest.raises(LauncherError, match=r"local/state: others may write to it \(mode 0777\)") as raised:
        runs.read()
    assert raised.value.fix == "chmod go-w that directory if it is yours, or choose another with XDG_STATE_HOME"


def test_which_agents_are_missing(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "runs")
    with held(runs, "1", None, tmp_path) as entry:
        (run,) = runs.read()
        assert run.read_missing() == ()
        entry.note_missing(["g1", "g2"])
        assert run.read_missing() == ("g1", "g2")
        entry.write(missing=7)
        assert run.read_missing() == ()
