"""The list of the runs that other machines control."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from launcher.controller import planted_runs
from launcher.controller.planted_runs import PlantedRun, PlantedRuns, Way

WAY = Way("gpu1", "ann", 2222, "fabric", "/home/ann/config", "/usr/bin/python3")


def planted(run_id: str, began_at: float = 1.8e9) -> PlantedRun:
    return PlantedRun(run_id, "base", began_at, WAY, id=run_id)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = PlantedRuns(tmp_path / "launch" / "planted")
    assert runs.read() == []
    runs.add(planted("20261120-091233"))
    (found,) = runs.read()
    assert found == planted("20261120-091233")
    assert (found.way.host.name, found.way.host.user, found.way.host.port) == ("gpu1", "ann", 2222)
    (place,) = (tmp_path / "launch" / "planted").iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_newest_comes_first_and_its_end_is_remembered(tmp_path: Path) -> None:
    runs = PlantedRuns(tmp_path)
    for number in range(3):
        runs.add(planted(f"run-{number}", 1.8e9 + number))
    runs.note_end(planted("run-1"), {"state": "finished"})
    assert [(run.id, run.row) for run in runs.read()] == [
        ("run-2", None), ("run-1", {"state": "finished"}), ("run-0", None),
    ]  # fmt: skip


def test_what_can_t_be_read_is_left_out(tmp_path: Path) -> None:
    runs = PlantedRuns(tmp_path)
    runs.add(planted("run-1"))
    for name, text in {"empty": "", "list": "[]", "other": '{"id": 1}', "way": '{"way": 3}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "planted.json").write_text(text)
    assert [run.id for run in runs.read()] == ["run-1"]


def test_runs_that_ended_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose end nobody saw may still be running."""
    runs = PlantedRuns(tmp_path)
    for name in ("ended", "running"):
        runs.add(planted(name))
    runs.note_end(planted("ended"), {"state": "finished"})
    monkeypatch.setattr(planted_runs, "KEPT_S", -1e12)
    runs.add(planted("new"))
    assert {run.id for run in runs.read()} == {"running", "new"}


def test_two_runs_on_different_hosts_may_begin_in_the_same_second(tmp_path: Path) -> None:
    runs = PlantedRuns(tmp_path)
    for _ in range(2):
        runs.add(planted("20261120-091233"))
    assert {(run.id, run.run_id) for run in runs.read()} == {
        ("20261120-091233", "20261120-091233"), ("20261120-091233.2", "20261120-091233"),
    }  # fmt: skip
