"""Which rank failed, where torchrun collected its exit code before the supervisor saw it."""

from __future__ import annotations

from types import SimpleNamespace as Fake

import pytest

from launcher.diagnosis.cause import find_cause
from launcher.diagnosis.failure import FailureKind
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.lines import STDERR
from launcher.output.node_output import NodeOutput
from launcher.runs.judge import Judge, find_failures
from launcher.session.connection import Event
from launcher.session.node_state import NodeState

PLAN = LaunchPlan(
    Program(ProgramKind.SCRIPT, "train.py"), (NodePlan(Host("gpu2"), 1, 2, 2, "/", {}),), 2, 4, "10.0.0.1", 1
)

TAKEN = "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."


def fail(said: str, *seen: int):
    """Return what has failed on gpu2, where the exits of these local ranks were seen, but not how they ended."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    output.feed(None, STDERR, said.encode())
    for local_rank in seen:
        state.exits[local_rank] = Event(
            0, messages.EXIT, {"age_s": 0.1, "was_stopping": False, "code": None, "signal": None}, 100.0
        )
    state.ended = Event(0, messages.ENDED, {"code": 1, "signal": None}, 101.0)
    return find_failures(fake_session(state), PLAN, [output], None)


def fake_session(state: NodeState) -> Fake:
    return Fake(states=[state], noise=lambda index: "", is_slurm_step=False)


def test_torchrun_is_named_if_nobody_knows_how_its_ranks_ended() -> None:
    (failure,) = fail("Signal 15 received\n", 0, 1)
    assert (failure.kind, failure.ending) == (FailureKind.TORCHRUN, "exit code 1")


def test_a_message_that_took_long_does_not_change_the_order_of_a_hosts_exits() -> None:
    """The first one waited while this machine was busy, and the second one was sent just before it came."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    for local_rank, (code, at, age_s) in {1: (42, 100.3, 0.01), 0: (43, 100.3, 0.25)}.items():
        fields = {"age_s": age_s, "was_stopping": False, "code": code, "signal": None}
        state.exits[local_rank] = Event(0, messages.EXIT, fields, at)
    failures = find_failures(fake_session(state), PLAN, [output], None)
    cause = find_cause(failures)
    assert cause is not None
    assert (cause.failure.code, cause.failure.at) == (42, pytest.approx(100.05))


@pytest.mark.parametrize(("at", "was_stopping"), [(99.9, True), (100.1, False)])
def test_whether_a_rank_ended_after_the_stop_is_for_its_host_to_say(at: float, *, was_stopping: bool) -> None:
    """When a message was sent is known here only as well as the way is measured, which differs on a busy machine."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    fields = {"age_s": 0.0, "was_stopping": was_stopping, "code": None, "signal": 15}
    state.exits[0] = Event(0, messages.EXIT, fields, at)
    (failure,) = find_failures(fake_session(state), PLAN, [output], 100.0)
    assert failure.after_stop is was_stopping


@pytest.mark.parametrize(("port", "started", "is_lost"), [(None, set(), True), (1, set(), False), (None, {0}, False)])
def test_a_port_that_another_program_took_before_torchrun_came(
    port: int | None, started: set[int], *, is_lost: bool
) -> None:
    """Not one that the user has named, and not once a rank runs."""
    state, output = NodeState("gpu1", started=started), NodeOutput("gpu1", None, None)
    output.feed(None, STDERR, f"torch.distributed.DistNetworkError: {TAKEN}\n".encode())
    state.ended = Event(0, messages.ENDED, {"code": 1, "signal": None}, 101.0)
    plan = LaunchPlan(PLAN.program, (NodePlan(Host("gpu1"), 0, 0, 2, "/", {}),), 1, 2, "10.0.0.1", 1)
    judge = Judge(fake_session(state), plan, [output], knows_all_ranks=True, planned_at=0.0)
    cause = judge.cause()
    assert cause is not None and cause.failure.kind is FailureKind.TORCHRUN
    assert judge.has_lost_port(cause, Job(PLAN.program, master_port=port)) is is_lost
