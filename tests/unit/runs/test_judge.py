"""What a host reports of its ranks becomes failures, and what is said of them: whichever of them is heard first."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest

from launcher.clock import wall_clock
from launcher.diagnosis.cause import find_cause
from launcher.diagnosis.failure import FailureKind
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.lines import STDERR
from launcher.output.node_output import NodeOutput
from launcher.runs.judge import LOST_HOST_SLACK_S, Judge, find_lost_host_wait
from launcher.runs.report import cause_block
from launcher.session.allowed_messages import read_message
from launcher.session.connection import Event
from launcher.session.node_state import NodeState

PLAN = LaunchPlan(
    Program(ProgramKind.SCRIPT, "train.py"), (NodePlan(Host("gpu2"), 1, 2, 2, "/", {}),), 2, 4, "10.0.0.1", 1
)


def fail(said: str, *seen: int):
    """Return what has failed on gpu2, where the exits of these local ranks were seen, but not how they ended."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    output.feed(None, STDERR, said.encode())
    for local_rank in seen:
        state.exits[local_rank] = Event(
            0, messages.EXIT, {"age_s": 0.1, "was_stopping": False, "code": None, "signal": None}, 100.0
        )
    state.ended = Event(0, messages.ENDED, {"code": 1, "signal": None}, 101.0)
    return Judge(fake_session(state), PLAN, [output], True, 0.0).failures()


def fake_session(state: NodeState) -> Fake:
    return Fake(states=[state], noise=lambda index: "", is_slurm_step=False)


def test_torchrun_is_named_if_nobody_knows_how_its_ranks_ended() -> None:
    (failure,) = fail("Signal 15 received\n", 0, 1)
    assert (failure.kind, failure.ending) == (FailureKind.TORCHRUN, "exit code 1")


def test_what_started_the_ranks_of_a_host_was_killed() -> None:
    """The kernel's count of its kills explains that as it does for a rank."""
    ending = {"code": None, "signal": 9, "oom": "probable"}
    state = NodeState("gpu2")
    told = read_message({"type": messages.FAILED, "text": "the helper was killed", "supervisor": ending})
    state.take(Event(0, messages.FAILED, told, 100.0))
    cause = find_cause(Judge(fake_session(state), PLAN, [NodeOutput("gpu2", None, None)], True, 0.0).failures())
    assert cause is not None
    assert cause.explanation is not None
    assert (cause.failure.kind, cause.failure.exit_code) == (FailureKind.SUPERVISOR, 137)
    assert cause.explanation.cause.startswith("the host's memory was full")


def test_a_message_that_took_long_does_not_change_the_order_of_a_hosts_exits() -> None:
    """The first one waited while this machine was busy, and the second one was sent just before it came."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    for local_rank, (code, at, age_s) in {1: (42, 100.3, 0.01), 0: (43, 100.3, 0.25)}.items():
        fields = {"age_s": age_s, "was_stopping": False, "code": code, "signal": None}
        state.exits[local_rank] = Event(0, messages.EXIT, fields, at)
    failures = Judge(fake_session(state), PLAN, [output], True, 0.0).failures()
    cause = find_cause(failures)
    assert cause is not None
    assert (cause.failure.code, cause.failure.at) == (42, pytest.approx(100.05))


@pytest.mark.parametrize(("at", "was_stopping"), [(99.9, True), (100.1, False)])
def test_whether_a_rank_ended_after_the_stop_is_for_its_host_to_say(at: float, *, was_stopping: bool) -> None:
    """When a message was sent is known here only as well as the way is measured, which differs on a busy machine."""
    state, output = NodeState("gpu2", started={0, 1}), NodeOutput("gpu2", None, None)
    fields = {"age_s": 0.0, "was_stopping": was_stopping, "code": None, "signal": 15}
    state.exits[0] = Event(0, messages.EXIT, fields, at)
    (failure,) = Judge(fake_session(state), PLAN, [output], True, 0.0, 100.0).failures()
    assert failure.after_stop is was_stopping


RAISED = """\
Traceback (most recent call last):
  File "{folder}/train.py", line 88, in step
    raise ValueError("rank {rank} met a NaN")
ValueError: rank {rank} met a NaN
"""
NO_PACKAGE = RAISED.replace("ValueError: rank {rank} met a NaN", "ModuleNotFoundError: No module named 'foo'")
LOST = RAISED.replace("ValueError: rank {rank} met a NaN", "RuntimeError: Connection closed by peer [::1]:{rank}04")
HANDLED = RAISED.replace("ValueError: rank {rank} met a NaN", "OSError: no such shard") + "retrying\n"
INTERRUPTED = RAISED.replace("ValueError: rank {rank} met a NaN", "RuntimeError: got SIGTERM, leaving")
CUT_OFF = RAISED[:120]
WARNED = RAISED + "[rank{rank}]:[W1120 x.cpp:1] Warning: destroy_process_group() was not called\n"

FOUR_RANKS = LaunchPlan(
    Program(ProgramKind.SCRIPT, "train.py"),
    tuple(NodePlan(Host(f"gpu{node + 1}"), node, 2 * node, 2, "/", {}) for node in (0, 1)),
    2, 4, "10.0.0.1", 1,
)  # fmt: skip
STOP_S = 5.0  # the stop is sent so long after the ranks wrote


def block(*ends, stopped_s=STOP_S):
    """Return what is said of four ranks that ended so: each end is what it wrote, how it ended and when."""
    now = wall_clock()
    states = [NodeState(node.host.name, started={0, 1}) for node in FOUR_RANKS.nodes]
    outputs = [NodeOutput(node.host.name, None, None) for node in FOUR_RANKS.nodes]
    for rank, (said, ending, at_s) in sorted(enumerate(ends), key=lambda end: end[1][2]):
        node, local_rank = divmod(rank, 2)
        outputs[node].feed(local_rank, STDERR, said.format(rank=rank, folder=f"/home/{node}").encode())
        code, number = (None, -ending) if ending < 0 else (ending, None)
        fields = {
            "local_rank": local_rank,
            "age_s": 0.0,
            "was_stopping": at_s > stopped_s,
            "code": code,
            "signal": number,
        }
        states[node].take(Event(node, messages.EXIT, fields, now + at_s))
    session = Fake(states=states, is_slurm_step=False)
    judge = Judge(session, FOUR_RANKS, outputs, knows_all_ranks=True, planned_at=now, stopped_at=now + stopped_s)
    failures, cause = judge.failures(), judge.cause()
    text = "\n".join(line.text for line in cause_block(cause, failures, 4, Path("log")))
    return re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text).splitlines()


def in_any_order(*ends):
    """Return the ends of the ranks, each of them as the first, second, ... by time."""
    return [[(said, ending, at_s + turn / 10) for (said, ending, at_s), turn in zip(ends, turns, strict=True)]
            for turns in permutations(range(len(ends)))]  # fmt: skip


@pytest.mark.parametrize(
    "ends",
    [
        *in_any_order(*[(RAISED, 1, 1.0)] * 4),
        *in_any_order((RAISED, 1, 1.0), (RAISED, 1, 6.0), (RAISED, -15, 6.0), (WARNED, -15, 6.0)),
        *in_any_order((RAISED, 1, 1.0), (CUT_OFF, -15, 6.0), (RAISED, -9, 21.0), (WARNED, 1, 6.0)),
    ],
)
def test_an_error_of_all_ranks_is_the_same_whoever_is_heard_first(ends):
    """Before the stop, after it, in the middle of it, or only killed at the end of it."""
    assert block(*ends) == [
        "  gpu1 rank 0 (local rank 0) at HH:MM:SS:",
        '    File "/home/0/train.py", line 88, in step',
        '      raise ValueError("rank 0 met a NaN")',
        "    ValueError: rank 0 met a NaN",
        "  same error on all 4 ranks: 2 each on gpu[1-2]",
        "  full log: log",
    ]


@pytest.mark.parametrize("ends", in_any_order(*[(LOST, 1, 1.0)] * 3, (RAISED, 1, 1.0)))
def test_an_error_of_one_rank_is_the_cause_whoever_is_heard_first(ends):
    assert block(*ends) == [
        "  gpu2 rank 3 (local rank 1) at HH:MM:SS:",
        '    File "/home/1/train.py", line 88, in step',
        '      raise ValueError("rank 3 met a NaN")',
        "    ValueError: rank 3 met a NaN",
        "  full log: log",
    ]


@pytest.mark.parametrize("ends", in_any_order(("", -15, 6.0), ("", 1, 6.0), *[(NO_PACKAGE, 1, 1.0)] * 2))
def test_a_package_that_one_node_lacks(ends):
    assert block(*ends)[-4:] == [
        "  same error on 2 of 4 ranks: 2 on gpu2",
        "  why: this host's Python has no module foo",
        "  fix: install it there, or select another --python; if it is yours, pass --workdir, or edit .launchignore",
        "  full log: log",
    ]


@pytest.mark.parametrize(
    ("end", "fails"),
    [
        ((HANDLED, -15, 6.0), False),
        ((INTERRUPTED, 1, 6.0), False),
        ((CUT_OFF, -15, 6.0), False),
        ((NO_PACKAGE, -15, 6.0), True),
        ((LOST, -15, 6.0), False),
        (("", 0, 0.5), False),
    ],
)
def test_what_another_rank_says_goes_before_our_signal(end, fails):
    killed = ("", -11, 1.0)
    line = "  1 other failed as well: 1 on gpu1"
    assert (block(killed, end, killed, killed)[-2] == line) is fails


def test_an_error_that_was_handled_long_ago_is_no_end():
    """The same one that ends the others: each of them is asked to end, and its stderr is an hour old."""
    ends = [(RAISED, 1, 3600.0), *[(RAISED, -15, 3602.0)] * 3]
    assert not any(line.startswith("  same error") for line in block(*ends, stopped_s=3601.0))


def test_a_rank_that_raises_is_the_cause_though_it_takes_long_to_end():
    """Those that lost it were quicker, and the stop came while it was still going down."""
    assert block((LOST, 1, 1.0), (LOST, 1, 1.0), (WARNED, -15, 6.0), (LOST, 1, 1.0)) == [
        "  gpu2 rank 2 (local rank 0) at HH:MM:SS:",
        '    File "/home/1/train.py", line 88, in step',
        '      raise ValueError("rank 2 met a NaN")',
        "    ValueError: rank 2 met a NaN",
        "  its last lines:",
        "    [rank2]:[W1120 x.cpp:1] Warning: destroy_process_group() was not called",
        "  full log: log",
    ]


def test_an_error_that_answers_the_stop_is_no_cause():
    ends = [(LOST, 1, -1.0), (RAISED, 1, 6.0), (LOST, 1, -1.0), ("", -15, 6.0)]
    assert block(*ends, stopped_s=-0.5)[0] == "  gpu1 rank 0 (local rank 0) at HH:MM:SS:"


@pytest.mark.parametrize("ends", in_any_order(*[(LOST, 1, 1.0)] * 3))
def test_a_rank_that_ends_early_is_the_cause_if_the_others_lose_it(ends):
    """Whoever of the others is heard first; an error that it has survived is not its end."""
    lines = block(ends[0], (RAISED, 0, 0.5), *ends[1:])
    assert lines == [
        "  gpu1 rank 1 (local rank 1) at HH:MM:SS:",
        "    finished before the others (exit code 0)",
        "  why: it exited while other ranks still needed it, and they lost their connection to it",
        "  fix: let all ranks do the same steps (equal shares of the data, the same checkpoint), and none return early",
        "  its last lines:",
        "    Traceback (most recent call last):",
        '      File "/home/0/train.py", line 88, in step',
        '        raise ValueError("rank 1 met a NaN")',
        "    ValueError: rank 1 met a NaN",
        "  full log: log",
    ]


def test_a_rank_that_ends_early_is_no_cause_if_another_one_fails():
    assert block((LOST, 1, 1.0), ("", 0, 0.5), (LOST, 1, 1.0), (NO_PACKAGE, 1, 1.5))[0].startswith("  gpu2 rank 3 ")


@pytest.mark.parametrize("success", [("", 0, 3.0), (LOST, 0, 0.5), ("", 0, -7200.0)])
def test_a_rank_that_ends_well_is_no_cause_if_others_lost_somebody_before(success):
    """Or if it says itself that it did, or if they went on without it for hours."""
    assert block((LOST, 1, 1.0), success, (LOST, 1, 1.0), (LOST, 1, 1.0))[0].startswith("  gpu1 rank 0 ")


def test_a_node_that_is_heard_late_changes_nothing():
    lines = block((LOST, 1, 1.0), ("", 0, 1.5), (LOST, 1, 1.0), (LOST, 1, 1.0))
    assert lines[1] == "    finished before the others (exit code 0)"


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
