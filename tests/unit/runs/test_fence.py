"""How long a run waits for hosts that nobody could ask what is left there."""

from __future__ import annotations

import pytest

from launcher.job.job import Job, Program, ProgramKind
from launcher.runs.fence import FENCE_SLACK_S, find_fence
from launcher.session.node_state import NodeState

JOB = Job(Program(ProgramKind.SCRIPT, "train.py"), silence_s=60, stop_timeout_s=15)
WINDOW_S = 60 + 15 + FENCE_SLACK_S
NOW = 1000.0


def node(*, lost_at: float | None = None, has_census: bool = False) -> NodeState:
    state = NodeState("gpu1", folder="/tmp/run")
    state.is_lost, state.lost_at = lost_at is not None, lost_at
    state.census = {"left": []} if has_census else None
    return state


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([node(has_census=True)], 0.0),
        ([node(lost_at=990, has_census=True)], 0.0),  # it was asked over another connection
        ([node(has_census=True), node(lost_at=990)], WINDOW_S - 10),
        ([node(lost_at=900), node(lost_at=995)], WINDOW_S - 5),
        ([node()], WINDOW_S),  # silent, but not for long enough to be lost
        ([node(lost_at=10)], 0.0),
        ([NodeState("gpu1")], 0.0),  # it never got an order
    ],
)
def test_the_fence(states: list[NodeState], expected: float) -> None:
    assert find_fence(JOB, states, NOW) == expected
