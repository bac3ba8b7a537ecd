"""The table of `launch ps`: what each run does, whole on every terminal."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from launcher.cli import ps
from launcher.runs.run_rows import RunRow
from launcher.runs.run_state import Activity, RestartCount, RunState

ROW = RunRow(
    run="20261120-091233", name="base", state="running", restarts=0, restarts_without_progress=0, restarts_left=3,
    age_s=3600.0, nodes=(8, 8), hosts=("gpu1", "gpu2"), launch_host="laptop", controller="gpu1", pid=7, logs="/l",
    last_line="[gpu1:0] step 1 loss 4.17",
)  # fmt: skip
RUNS = {"doing": RunState(Activity.RUNNING, 0.0, RestartCount(1, 1, 2)).as_doing(9.0), "restarts": 1}
WAITS = {"doing": RunState(Activity.WAITING, 0.0, RestartCount(1, 1, 2), ("gpu2",)).as_doing(250.0)}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "running"),  # of an older controller
        ({"restarts": 2}, "running (2 restarts used)"),
        (RUNS, "running (1 restart used)"),
        ({**RUNS, **WAITS}, "waiting for gpu2 (4 min 10 s)"),
        ({"state": "failed", "exit_code": 7, "restarts": None}, "failed (7)"),
        ({"state": "unknown", "restarts": None}, "unknown"),
    ],
)
@pytest.mark.parametrize("columns", [60, 200])
def test_no_column_is_cut(
    change: dict[str, Any],
    state: str,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    ps._print_table([replace(ROW, **change)])
    row = capsys.readouterr().out.splitlines()[-1]
    for cell in ("20261120-091233", "base", state, "1 h 00 min", "gpu1", "2 x 8 gpu[1-2]"):
        assert f"{cell}  " in row, row
    assert row.endswith("[gpu1:0] step 1 loss 4.17" if columns == 200 else "[gpu1:0..."), row


def test_what_is_known_of_a_run_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = "doesn't answer; 3 h 02 min ago it was running"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, said in ((80, f"launch: run 20261120-091233: {known}\n"), (200, "")):
        monkeypatch.setenv("COLUMNS", str(columns))
        ps._print_table([replace(ROW, state="unknown", restarts=None, last_line=known)])
        assert capsys.readouterr().err == said
