"""What `launch logs` refuses, judged by the record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machines.example_run import ExampleRun

from launcher.cli.attach import attach
from launcher.cli.logs import refuse_unknown
from launcher.errors import UsageError
from launcher.runs.run_json import read_run_json

ATTEMPT = {"began_at": "", "ended_at": "", "outcome": "error", "result": {"exit_code": 1}}


def record(*sizes: int, **more: Any) -> dict[str, Any]:
    """Return what run.json has of attempts with so many hosts of two ranks each; the plan is the last one's."""
    nodes = [{"host": "h", "node_rank": node, "first_rank": 2 * node, "nproc": 2} for node in range(sizes[-1])]
    return {"plan": {"nodes": nodes}, "attempts": [{**ATTEMPT, "hosts": ["h"] * size} for size in sizes], **more}


ENDED = {"ended_at": "2026-11-20T09:12:33.123+01:00"}
# One node of several that were started by hand.
SHARE = {"plan": {"nodes": [{"host": "h", "node_rank": 1, "first_rank": 2, "nproc": 2}]}, **ENDED}


# Two tries to reach a host before restart 1 began.
WAITED = {**record(2), "attempts": [{**ATTEMPT, "hosts": ["h", "h"], "restarts": {"used": 1}}] * 3}


@pytest.mark.parametrize(
    ("given", "found", "error"),
    [
        ({"node": 5}, record(2), "--node 5: run R has no such node; choose from 0-1"),
        ({"rank": 99}, record(2), "--rank 99: run R has no such rank; choose from 0-3"),
        ({"attempt": 7}, record(2, 2, **ENDED), "--attempt 7: run R has no such attempt; choose from 0-1"),
        ({"attempt": 2}, record(2, 2, **ENDED), "--attempt 2: run R has no such attempt; choose from 0-1"),
        ({"attempt": 2}, record(2, 2), ""),  # it runs
        ({"attempt": 2}, WAITED, "--attempt 2: run R has no such attempt; choose from 0-1"),
        ({"node": 2, "rank": 5}, record(3, 2), ""),  # of the first attempt, which had more hosts
        ({"rank": 6}, record(3, 2), "--rank 6: run R has no such rank; choose from 0-5"),
        ({"node": 1, "rank": 3}, SHARE, ""),
        ({"rank": 0}, SHARE, "--rank 0: run R has no such rank; choose from 2-3"),
        ({"node": 5, "rank": 9}, {}, ""),  # its ranks haven't started
        ({}, record(2), ""),
    ],
)
def test_what_the_run_does_not_have_is_an_error(given: dict[str, int], found: dict[str, Any], error: str) -> None:
    said = ""
    try:
        refuse_unknown("R", read_run_json(found), **given)
    except UsageError as refusal:
        said = f"{refusal}; {refusal.fix}"
    assert said == error


def test_attach_names_the_controller_as_the_user_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = ExampleRun().write(tmp_path)
    attach(run, host="gpu7")
    title = f"run {run.id} ({run.name})" if run.name else f"run {run.id}"
    assert f"launch: {title}, which gpu7 controlled, has ended" in capfd.readouterr().err
