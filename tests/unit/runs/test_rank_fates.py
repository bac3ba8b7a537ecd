"""What is said of all ranks of a failed run: the same whichever of them is heard first."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest

from launcher.clock import wall_clock
from launcher.diagnosis.cause import find_cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.job import Program, ProgramKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_output import NodeOutput
from launcher.runs.judge import count_rank_fates, find_failures, find_successes
from launcher.runs.report import cause_block
from launcher.session.connection import Event
from launcher.session.node_state import Census, NodeState

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
UNREADABLE = '  File "/train.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
CUT_OFF = RAISED[:120]
WARNED = RAISED + "[rank{rank}]:[W1120 x.cpp:1] Warning: destroy_process_group() was not called\n"

PLAN = LaunchPlan(
    Program(ProgramKind.SCRIPT, "train.py"),
    tuple(NodePlan(Host(f"gpu{node + 1}"), node, 2 * node, 2, "/", {}) for node in (0, 1)),
    2, 4, "10.0.0.1", 1,
)  # fmt: skip
STOP_S = 5.0  # the stop is sent so long after the ranks wrote


def block(*ends, stopped_s=STOP_S, stream=STDERR):
    """Return what is said of four ranks that ended so: each end is what it wrote, how it ended and when."""
    now = wall_clock()
    states = [NodeState(node.host.name, started={0, 1}) for node in PLAN.nodes]
    outputs = [NodeOutput(node.host.name, None, None) for node in PLAN.nodes]
    for rank, (said, ending, at_s) in sorted(enumerate(ends), key=lambda end: end[1][2]):
        node, local_rank = divmod(rank, 2)
        outputs[node].feed(local_rank, stream, said.format(rank=rank, folder=f"/home/{node}").encode())
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
    failures = find_failures(session, PLAN, outputs, now + stopped_s)
    cause = find_cause(failures, range(4), succeeded=find_successes(session, PLAN, outputs))
    census = Census({"gpu1": [], "gpu2": []}, {})
    others = count_rank_fates(cause, failures, PLAN, states, census)
    text = "\n".join(line.text for line in cause_block(cause, others, Path("log")))
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


@pytest.mark.parametrize(
    "said",
    [
        "\r  0%|  | 0/9\r 11%|# | 1/9" + RAISED,
        RAISED.replace("ValueError", "\x1b[1;35mValueError\x1b[0m").replace("train.py", "\x1b[35mtrain.py\x1b[0m"),
    ],
)
@pytest.mark.parametrize("stream", [STDOUT, STDERR])
def test_an_error_is_found_wherever_it_was_printed(said, stream):
    lines = block((said, 1, 1.0), *[("", 0, 1.0)] * 3, stream=stream)
    assert lines[1:4] == [
        '    File "/home/0/train.py", line 88, in step',
        '      raise ValueError("rank 0 met a NaN")',
        "    ValueError: rank 0 met a NaN",
    ]


@pytest.mark.parametrize("ends", in_any_order(*[(UNREADABLE, 1, 1.0)] * 3, (UNREADABLE, 1, 6.0)))
def test_a_script_that_no_rank_can_read(ends):
    assert block(*ends)[1:] == [
        '    File "/train.py", line 1',
        "      def f(:",
        "            ^",
        "    SyntaxError: invalid syntax",
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
        "  3 others failed because of it: 2 on gpu1, 1 on gpu2",
        "  full log: log",
    ]


@pytest.mark.parametrize("ends", in_any_order(("", -15, 6.0), ("", 1, 6.0), *[(NO_PACKAGE, 1, 1.0)] * 2))
def test_a_package_that_one_node_lacks(ends):
    assert block(*ends)[-5:] == [
        "  same error on 2 of 4 ranks: 2 on gpu2",
        "  why: this host's Python has no module foo",
        "  fix: install it there, or select another --python; if it is yours, pass --workdir, or edit .launchignore",
        "  2 others stopped by launch: 2 on gpu1",
        "  full log: log",
    ]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (("", -15, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        (("", 43, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        (("", 0, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        ((HANDLED, -15, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        ((INTERRUPTED, 1, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        ((CUT_OFF, -15, 6.0), "  1 other stopped by launch: 1 on gpu1"),
        ((NO_PACKAGE, 1, 6.0), "  1 other failed as well: 1 on gpu1"),
        ((NO_PACKAGE, -15, 6.0), "  1 other failed as well: 1 on gpu1"),
        ((NO_PACKAGE, 1, 2.0), "  1 other failed as well: 1 on gpu1"),
        (("", -15, 2.0), "  1 other failed as well: 1 on gpu1"),  # somebody else's signal
        ((LOST, -15, 6.0), "  1 other failed because of it: 1 on gpu1"),
        (("", 0, 0.5), "  1 other had already succeeded: 1 on gpu1"),
    ],
)
def test_what_another_rank_says_goes_before_our_signal(end, line):
    killed = ("", -11, 1.0)
    assert block(killed, end, killed, killed)[-2:] == [line, "  full log: log"]


def test_a_supervisor_in_trouble_stops_its_ranks_by_itself():
    state = NodeState("gpu1", started={0}, failure=HostFailure("gpu1", HostFailureKind.SUPERVISOR, "killed"))
    fields = {"local_rank": 0, "age_s": 0.0, "was_stopping": True, "code": None, "signal": 15}
    state.take(Event(0, messages.EXIT, fields, 2.0))
    failure = Failure("gpu1", 0, FailureKind.RANK, 2.0, rank=0, signal=15)
    cause = find_cause([Failure("gpu1", 0, FailureKind.SUPERVISOR, 1.0, text="killed")])
    plan = replace(PLAN, nodes=PLAN.nodes[:1])
    others = count_rank_fates(cause, [failure], plan, [state], Census({"gpu1": []}, {}))
    assert (others.stopped, others.failed) == ({"gpu1": 1}, {})


def test_an_error_that_was_handled_long_ago_is_no_end():
    """The same one that ends the others: each of them is asked to end, and its stderr is an hour old."""
    ends = [(RAISED, 1, 3600.0), *[(RAISED, -15, 3602.0)] * 3]
    assert block(*ends, stopped_s=3601.0)[-2] == "  3 others stopped by launch: 1 on gpu1, 2 on gpu2"


def test_a_rank_that_raises_is_the_cause_though_it_takes_long_to_end():
    """Those that lost it were quicker, and the stop came while it was still going down."""
    assert block((LOST, 1, 1.0), (LOST, 1, 1.0), (WARNED, -15, 6.0), (LOST, 1, 1.0)) == [
        "  gpu2 rank 2 (local rank 0) at HH:MM:SS:",
        '    File "/home/1/train.py", line 88, in step',
        '      raise ValueError("rank 2 met a NaN")',
        "    ValueError: rank 2 met a NaN",
        "  its last lines:",
        "    [rank2]:[W1120 x.cpp:1] Warning: destroy_process_group() was not called",
        "  3 others failed because of it: 2 on gpu1, 1 on gpu2",
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
        "  3 others failed because of it: 1 on gpu1, 2 on gpu2",
        "  full log: log",
    ]


def test_a_rank_that_ends_early_is_no_cause_if_another_one_fails():
    assert block((LOST, 1, 1.0), ("", 0, 0.5), (LOST, 1, 1.0), (NO_PACKAGE, 1, 1.5))[-3:] == [
        "  2 others failed because of it: 1 each on gpu[1-2]",
        "  1 other had already succeeded: 1 on gpu1",
        "  full log: log",
    ]


@pytest.mark.parametrize("success", [("", 0, 3.0), (LOST, 0, 0.5), ("", 0, -7200.0)])
def test_a_rank_that_ends_well_is_no_cause_if_others_lost_somebody_before(success):
    """Or if it says itself that it did, or if they went on without it for hours."""
    assert block((LOST, 1, 1.0), success, (LOST, 1, 1.0), (LOST, 1, 1.0))[-2] == (
        "  1 other had already succeeded: 1 on gpu1"
    )


def test_a_node_that_is_heard_late_changes_nothing():
    lines = block((LOST, 1, 1.0), ("", 0, 1.5), (LOST, 1, 1.0), (LOST, 1, 1.0))
    assert lines[1] == "    finished before the others (exit code 0)"


def test_ranks_that_are_killed_alike_are_the_same():
    ends = [("", -11, 1.0), ("", -11, 1.1), ("", -15, 6.0), ("", -11, 1.2)]
    assert block(*ends)[2] == "  same error on 3 of 4 ranks: 2 on gpu1, 1 on gpu2"
