"""What `launch ps` says of a run that failed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from machines.example_run import ExampleRun

from launcher.runs.run_json import read_run_json
from launcher.runs.run_list import Controller, End, ListedRun
from launcher.runs.run_rows import find_last_line, make_row, read_row

RUN = ListedRun(
    Path("R"), Controller("R", None, "/logs", "here", "", 1, 2, 0.0), is_alive=False, end=End(1, is_stopped=False)
)
KILLED = {"name": "killed", "cause": "it was killed from outside", "fix": ""}


@pytest.mark.parametrize(
    ("traceback", "explanation", "last_lines", "text"),
    [
        (["File 'x'", "ValueError: y"], KILLED, ["step 1"], "ValueError: y"),
        ([], KILLED, ["step 1"], "killed by SIGKILL: it was killed from outside"),
        ([], None, ["step 1", " no data "], "killed by SIGKILL: no data"),
        ([], None, [], "killed by SIGKILL"),
    ],
)
def test_the_reason_is_the_cause(
    traceback: list[str], explanation: dict[str, str] | None, last_lines: list[str], text: str
) -> None:
    """What the rank printed before is none, unless nothing else is known."""
    cause: dict[str, Any] = {
        "host": "gpu1", "rank": 3, "text": "killed by SIGKILL", "traceback": traceback, "explanation": explanation,
        "last_lines": last_lines,
    }  # fmt: skip
    result = {"exit_code": -9, "cause": {"what": "rank", "at": "", **cause}}
    assert find_last_line(RUN, read_run_json({"result": result})) == f"gpu1 rank 3: {text}"


@pytest.mark.parametrize("change", [
    {"attempts": [7]}, {"attempts": 7}, {"plan": []}, {"plan": {"nodes": [7]}}, {"plan": {"nodes": [{"nproc": "x"}]}},
    {"launch_host": ["x"]}, {"result": {"cause": "x"}}, {"result": 7}, {"deep": json.loads("[" * 200 + "]" * 200)},
])  # fmt: skip
def test_an_odd_run_json_costs_only_what_it_says(tmp_path: Path, change: dict[str, Any]) -> None:
    """Not the row of its run, nor those of others."""
    run = ExampleRun().write(tmp_path)
    (run.folder / "run.json").write_text(json.dumps({**run.read_json(), **change}))
    row = make_row(run, 7.0)
    assert read_row(json.loads(json.dumps(asdict(row)))) == row
    assert (row.run, row.state, row.exit_code, row.logs) == (run.id, "failed", 1, str(run.folder))
    assert {*run.read_record().all_hosts} <= {*ExampleRun().names}


def test_who_started_a_run_and_what_controls_it(tmp_path: Path) -> None:
    row = make_row(ExampleRun(more={"launch_host": "desk"}).write(tmp_path), 7.0)
    assert (row.launch_host, row.controller, row.nodes, row.attempts) == ("desk", "laptop", (8,) * 8, 3)


def test_a_run_that_never_started_says_why() -> None:
    error = "gpu1: no GPU (neither nvidia-smi nor rocm-smi found)"
    assert (
        find_last_line(RUN, read_run_json({"result": {"exit_code": 70, "error": f"{error}\n  fix: install"}})) == error
    )
