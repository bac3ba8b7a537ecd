"""The runs in the list that other machines control."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.runs import run_list
from launcher.runs.run_list import ListedRun, RemoteRun, RunList, Way, claim_place
from launcher.runs.run_rows import RunRow

AGELESS = '{"name": null, "began_at": Infinity, "way": {"name": "gpu1"}}'
ROW = RunRow(
    run="20261120-091233", state="finished", exit_code=0, attempts=1, age_s=1.5, nodes=(8, 8), hosts=("gpu1", "gpu2"),
    launch_host="laptop", controller="gpu1", logs="/l",
    last_line="step 1",
)  # fmt: skip
WAY = Way("gpu1", "ann", 2222, "fabric", "/home/ann/config", "/usr/bin/python3")


def planted(run_id: str, began_at: float = 1.8e9) -> RemoteRun:
    return RemoteRun(run_id, WAY, "base", began_at)


def read(runs: RunList) -> list[RemoteRun]:
    return [run for run in runs.read_all() if isinstance(run, RemoteRun)]


def add(runs: RunList, run: RemoteRun) -> None:
    assert claim_place(runs.base, run.id, "token")
    runs.add(run)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = RunList(tmp_path / "launch" / "planted")
    assert read(runs) == []
    add(runs, planted("20261120-091233"))
    (found,) = read(runs)
    assert found == planted("20261120-091233")
    assert (found.way.host.name, found.way.host.user, found.way.host.port) == ("gpu1", "ann", 2222)
    (place,) = (tmp_path / "launch" / "planted").iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_newest_comes_first_and_its_end_is_remembered(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    for number in range(3):
        add(runs, planted(f"run-{number}", 1.8e9 + number))
    runs.note_seen(planted("run-1"), ROW)
    assert [(run.id, run.row) for run in read(runs)] == [
        ("run-2", None), ("run-1", ROW), ("run-0", None),
    ]  # fmt: skip


def test_only_an_end_is_remembered(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    add(runs, planted("run-1"))
    path, row = tmp_path / "run-1" / "planted.json", asdict(replace(ROW, state="running"))
    known = json.loads(path.read_text())
    for odd in (None, [], {"at": "x", "row": {}}, {"at": 1.8e9, "row": {"run": 3}}, {"at": 1.8e9, "row": row}):
        path.write_text(json.dumps({**known, "seen": odd}))
        assert read(runs)[0].row is None
    runs.note_seen(planted("run-1"), replace(ROW, state="running"))
    assert read(runs)[0].row is None
    path.write_text(json.dumps(known))
    path.with_name("seen.json").write_text(json.dumps({"at": 1.8e9, "row": asdict(ROW)}))
    assert read(runs)[0].row == ROW, "as an earlier version has written it"
    runs.forget(read(runs)[0])
    assert not (tmp_path / "run-1").exists()


def test_what_a_newer_version_wrote_is_read(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    add(runs, planted("run-1"))
    path = tmp_path / "run-1" / "planted.json"
    before, values = read(runs), json.loads(path.read_text())
    for part in (values, values["way"]):
        part["more"] = 1
    path.write_text(json.dumps(values))
    assert read(runs) == before


def test_what_can_t_be_read_is_left_out(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    add(runs, planted("run-1"))
    for name, text in {"empty": "", "list": "[]", "other": '{"id": 1}', "way": '{"way": 3}', "age": AGELESS}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "planted.json").write_text(text)
    assert [run.id for run in read(runs)] == ["run-1"]


def test_runs_that_ended_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose end nobody saw may still be running."""
    runs = RunList(tmp_path)
    for name in ("ended", "running"):
        add(runs, planted(name))
    runs.note_seen(planted("ended"), ROW)
    monkeypatch.setattr(run_list, "KEPT_S", -1e12)
    add(runs, planted("soon"))
    assert {run.id for run in read(runs)} == {"ended", "running", "soon"}  # it was looked a moment ago
    monkeypatch.setattr(run_list, "PRUNE_S", 0.0)
    os.utime(tmp_path / "running", (0, 0))  # no id that was taken in vain
    add(runs, planted("new"))
    assert {run.id for run in read(runs)} == {"running", "soon", "new"}


def test_what_the_controller_has_in_the_same_directory_stays(tmp_path: Path) -> None:
    """With one home directory for all hosts."""
    runs = RunList(tmp_path)
    add(runs, planted("run-1"))
    (tmp_path / "run-1" / "controller.json").touch()
    runs.discard("run-1")
    assert [path.name for path in (tmp_path / "run-1").iterdir()] == ["controller.json"]


@pytest.mark.parametrize("is_here", [True, False])
def test_a_run_with_both_entries_is_one_run(tmp_path: Path, is_here: bool) -> None:
    """With one home directory for all hosts; this machine knows how it is doing only if it controls it."""
    runs = RunList(tmp_path)
    add(runs, planted("run-1"))
    entry = runs.begin("run-1", "base", tmp_path)
    if not is_here:
        path = tmp_path / "run-1" / "controller.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": "gpu1", "boot_id": "another"}))
    assert [type(run) for run in runs.read_all()] == [ListedRun if is_here else RemoteRun]
    assert [run.id for run in runs.read()] == ["run-1"]
    entry.close(is_kept=True)
