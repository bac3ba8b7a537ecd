"""Rows about runs that other hosts have sent: only what can be a row is shown."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, get_args

import pytest

from launcher.cli.find_run import read_answer
from launcher.runs.run_rows import RunRow, read_row

ROW: dict[str, Any] = {
    "run": "20261120-091233", "name": None, "state": "running", "exit_code": None, "attempts": 0,
    "doing": None, "restarts": 0, "restarts_without_progress": 0, "restarts_left": 3, "age_s": 1.5,
    "nodes": [8, 8], "hosts": ["gpu1", None], "launch_host": "laptop", "controller": "gpu1", "pid": 7, "logs": "/l",
    "last_line": "step 1",
}  # fmt: skip


WAITS = {"what": "waiting", "for_s": 240.0, "left_s": None, "restart": 3, "hosts": ["g2"]}
WAITS |= {"place": 0, "behind": "", "odd": []}


def test_rows_of_a_host_that_tells_the_truth() -> None:
    waits = {**ROW, "doing": WAITS}
    rows = [ROW, waits, {**ROW, "name": "base", "exit_code": 3, "nodes": [None], "pid": None, "logs": None}]
    found = read_answer(json.dumps(rows).encode())
    assert json.loads(json.dumps([asdict(row) for row in found])) == rows
    assert [read_answer(data) for data in (b"", b"{}", b"7")] == [[], [], []]


@pytest.mark.parametrize("change", [
    {"run": "../../etc"}, {"state": "well"}, {"nodes": [-1]}, {"age_s": math.inf}, {"doing": {**WAITS, "what": "well"}},
    {"doing": {**WAITS, "hosts": ["x" * 256]}},
])  # fmt: skip
def test_what_can_t_be_a_row_is_left_out(change: dict[str, object]) -> None:
    assert read_answer(json.dumps([{**ROW, **change}, ROW, 7]).encode()) == [read_row(ROW)]


def test_texts_of_a_host_are_cleaned() -> None:
    """Also for --json, whose reader may print them; nothing that a row doesn't have comes through."""
    said = "\x1b]52;c;aGk=\x07\ud800\n\u202e" + "x" * 10_000
    rows = read_answer(json.dumps([{**ROW, "last_line": said, "more": said}]).encode())
    assert rows[0].last_line.startswith("?]52;c;aGk=????xxx") and len(rows[0].last_line) < 5000
    (row,) = read_answer(json.dumps([{**ROW, "doing": {**WAITS, "hosts": [said[:20]]}}]).encode())
    assert row.doing is not None and row.doing.hosts == ("?]52;c;aGk=????xxxxx",)


def test_the_row_of_an_older_controller() -> None:
    """It doesn't tell what the run does now."""
    fresh = ("doing", "restarts_without_progress", "restarts_left")
    old = {key: value for key, value in ROW.items() if key not in fresh}
    (row,) = read_answer(json.dumps([old]).encode())
    assert (row.doing, row.restarts_left) == (None, None)
    assert {key: json.loads(json.dumps(asdict(row)))[key] for key in old} == old


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_json(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_answer(data)


def test_which_runs_may_live() -> None:
    states = get_args(RunRow.__annotations__["state"])
    living = [state for state in states if RunRow(run=str(ROW["run"]), state=state).may_live]
    assert living == ["starting", "running", "unknown"]
