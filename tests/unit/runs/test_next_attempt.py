"""What the next attempt waits for: hosts that nobody could ask what is left there, and GPUs that are not yet free."""

from __future__ import annotations

import pytest

from launcher.hosts.host import Host
from launcher.job.facts import Gpu, NodeFacts
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.runs.next_attempt import (
    LOST_HOST_SLACK_S,
    GpusInUseError,
    find_lost_host_wait,
    measure_use,
    refuse_unfreed,
)
from launcher.session.node_state import NodeState

JOB = Job(Program(ProgramKind.SCRIPT, "train.py"), timeouts=Timeouts(10, 60, 15))
WINDOW_S = 60 + 15 + LOST_HOST_SLACK_S
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
def test_wait_for_lost_hosts(states: list[NodeState], expected: float) -> None:
    assert find_lost_host_wait(JOB, states, NOW) == expected


THREE_RANKS = Job(Program(ProgramKind.SCRIPT, "train.py"), nproc=3)


def use(*free_mib: int | None) -> dict[str, dict[int, int]]:
    gpus = tuple(Gpu(index, "H200", 143771, "580", free) for index, free in enumerate(free_mib))
    return measure_use(THREE_RANKS, [Host("gpu2")], [NodeFacts("/tmp/run", gpus=gpus)])


def test_a_driver_may_keep_some() -> None:
    refuse_unfreed(use(143000, 100000), use(143000 - 512, 100001), {})


def test_a_gpu_that_is_not_free_is_named() -> None:
    with pytest.raises(GpusInUseError) as caught:
        refuse_unfreed(use(143000, 143000, 90000), use(142000, 143000, 10000), {"gpu2": "pid 42 (python) of bob"})
    assert caught.value.hosts == ("gpu2",)
    assert caught.value.message == (
        "gpu2: GPU 0 and 2 still have 79 GB more in use than before the first attempt, by pid 42 (python) of bob"
    )


def test_what_is_not_known_is_not_compared() -> None:
    refuse_unfreed(use(None, 143000), use(0, None), {})
    refuse_unfreed({}, use(0), {})


def test_a_gpu_of_others_is_theirs() -> None:
    refuse_unfreed(use(100, 100, 100, 143000), use(100, 100, 100, 0), {})
