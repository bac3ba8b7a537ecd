"""What is known of a node after what it said: its stage in words, its failure, and what may still run there."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.errors import HostFailure, HostFailureKind
from launcher.job.facts import Route
from launcher.node import messages
from launcher.session.connection import LOST, READY, Event
from launcher.session.node_state import Census, NodeState, Stage, make_census

GONE = HostFailure("n1", HostFailureKind.CONNECTION, "the connection was lost")
CLEAN = {"left": [], "reason": None}


def event(kind: str, **fields: Any) -> Event:
    return Event(0, kind, fields, 100.0)


def state_after(*events: Event, **known: Any) -> NodeState:
    state = NodeState("n1", **known)
    for each in events:
        state.take(each)
    return state


HELLO = event(messages.HELLO, folder="/tmp/launch-x", keepers=[[1, 2]])
STARTED = event(messages.STARTED, local_rank=0)
LOSS = event(LOST, failure=GONE)
CENSUS = event(messages.CENSUS, **CLEAN)
LOOKING = "looking for a Python with torch, and for GPUs (which may take a minute)"


@pytest.mark.parametrize(
    ("events", "known", "words"),
    [
        ([event(READY)], {}, "starting launch's helper"),
        ([event(READY), HELLO], {}, LOOKING),
        ([event(READY), HELLO], {"has_setup": True}, f"running its setup, then {LOOKING}"),
        ([HELLO, event(messages.FACTS)], {}, "waiting for the other hosts"),
        ([STARTED], {"stage": Stage.IMPORTING_TORCH}, "running, no output yet"),
        ([LOSS], {"stage": Stage.STOPPING, "is_swept": True}, "unreachable"),
    ],
)
def test_the_words_for_what_a_node_is_at(events: list[Event], known: dict[str, Any], words: str) -> None:
    assert state_after(*events, **known).stage.value == words


def test_the_way_to_node_0() -> None:
    way = {"interface": "eth1", "address": "10.0.0.1", "port": 41873, "error": None, "probe_port": None}
    assert state_after(HELLO, event(messages.ROUTED, **way)).route == Route("eth1", "10.0.0.1", 41873)


def test_the_first_failure_is_the_failure() -> None:
    state = state_after(event(messages.FAILED, text="start: no room"), LOSS)
    assert state.failure == HostFailure("n1", HostFailureKind.SUPERVISOR, "start: no room")
    assert state.is_lost


def test_a_connection_that_ends_after_the_census_is_no_failure() -> None:
    state = state_after(HELLO, CENSUS, LOSS)
    assert (state.failure, state.is_lost, state.has_sent_all) == (None, False, True)


@pytest.mark.parametrize(("kind", "is_shown"), [(HostFailureKind.SLURM, True), (HostFailureKind.CONNECTION, False)])
def test_a_helper_that_slurm_has_killed_first_is_no_cause(kind: HostFailureKind, *, is_shown: bool) -> None:
    cancelled = HostFailure("n1", kind, "Slurm has cancelled step 7.0")
    killed = event(messages.FAILED, text="its parent process was killed")
    state = state_after(HELLO, killed, event(LOST, failure=cancelled))
    assert (state.failure == cancelled) == is_shown


@pytest.mark.parametrize(
    ("events", "known", "is_to_sweep", "is_settled"),
    [
        ([HELLO], {}, False, False),  # it runs
        ([HELLO, LOSS], {}, True, False),
        ([HELLO, LOSS, CENSUS], {"is_swept": True}, False, True),
        ([LOSS, LOSS], {"has_orders": True, "is_swept": True}, False, True),
        ([LOSS], {}, False, True),  # it was never reached
        ([LOSS], {"has_orders": True}, True, False),  # before its first word
        ([event(messages.FAILED, text="prepare: no room"), LOSS], {"has_orders": True}, False, True),
    ],
)
def test_a_lost_node_is_asked_again_where_something_may_run(
    events: list[Event], known: dict[str, Any], *, is_to_sweep: bool, is_settled: bool
) -> None:
    state = state_after(*events, **known)
    assert (state.is_to_sweep, state.is_settled) == (is_to_sweep, is_settled)


def test_a_census_counts_what_may_remain_where_nobody_answers() -> None:
    clean = state_after(HELLO, event(messages.CENSUS, left=[[7, "python", "D"]]))
    silent = NodeState("n2", folder="/tmp/launch-x", started={0, 1, 2}, exits={1: event(messages.EXIT)})
    assert make_census([clean, silent, NodeState("n3")]) == Census({"n1": [[7, "python", "D"]]}, {"n2": 2})


PROCESS = [411, "python", "D"]


@pytest.mark.parametrize(
    ("census", "words", "is_clean"),
    [
        (Census({"gpu1": [], "gpu2": []}, {}), "0 processes left on 2 hosts", True),
        (Census({"gpu1": [PROCESS], "gpu2": []}, {}), "1 process left on 2 hosts", False),
        (
            Census({"gpu1": []}, {"gpu2": 8, "gpu3": 1}),
            "0 processes left on 1 host; gpu2 unreachable, 8 processes may remain; "
            "gpu3 unreachable, 1 process may remain",
            False,
        ),
        (Census({}, {"gpu2": 8}), "gpu2 unreachable, 8 processes may remain", False),
        (Census({}, {"gpu2": 0}), "gpu2 unreachable, anything started there may remain", False),
    ],
)
def test_what_is_left_in_words(census, words, is_clean):
    assert (census.describe(), census.is_clean) == (words, is_clean)
