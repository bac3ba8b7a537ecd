"""What `launch logs` refuses, judged by the record of a run."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.commands.run_actions import LogsRequest, refuse_unknown
from launcher.errors import UsageError


def record(*sizes: int, **more: Any) -> dict[str, Any]:
    """Return what run.json has of attempts with so many hosts of two ranks each; the plan is the last one's."""
    nodes = [{"node_rank": node, "first_rank": 2 * node, "nproc": 2} for node in range(sizes[-1])]
    return {"plan": {"nodes": nodes}, "attempts": [{"hosts": ["h"] * size} for size in sizes], **more}


ENDED = {"ended_at": "2026-11-20T09:12:33.123+01:00"}
# One node of several that were started by hand.
SHARE = {"plan": {"nodes": [{"node_rank": 1, "first_rank": 2, "nproc": 2}]}, **ENDED}


@pytest.mark.parametrize(
    ("request_", "found", "error"),
    [
        (LogsRequest(node=5), record(2), "--node 5: run R has no such node; choose from 0-1"),
        (LogsRequest(rank=99), record(2), "--rank 99: run R has no such rank; choose from 0-3"),
        (LogsRequest(attempt=7), record(2, 2, **ENDED), "--attempt 7: run R has no such attempt; choose from 0-1"),
        (LogsRequest(attempt=2), record(2, 2, **ENDED), "--attempt 2: run R has no such attempt; choose from 0-1"),
        (LogsRequest(attempt=2), record(2, 2), ""),  # it runs
        (LogsRequest(attempt=3, follows=True), record(2, 2), ""),
        (LogsRequest(node=2, rank=5), record(3, 2), ""),  # of the first attempt, which had more hosts
        (LogsRequest(rank=6), record(3, 2), "--rank 6: run R has no such rank; choose from 0-5"),
        (LogsRequest(node=1, rank=3), SHARE, ""),
        (LogsRequest(rank=0), SHARE, "--rank 0: run R has no such rank; choose from 2-3"),
        (LogsRequest(node=5, rank=9), {}, ""),  # its ranks haven't started
        (LogsRequest(), record(2), ""),
    ],
)
def test_what_the_run_does_not_have_is_an_error(request_: LogsRequest, found: dict[str, Any], error: str) -> None:
    said = ""
    try:
        refuse_unknown("R", request_, found)
    except UsageError as refusal:
        said = f"{refusal}; {refusal.fix}"
    assert said == error
