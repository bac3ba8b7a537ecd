"""The words of a run, compared whole with the screens that the design draws."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.diagnosis.cause import find_cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.hosts.host import Host
from launcher.job.job import Program, ProgramKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.output.output_streams import Style
from launcher.preflight.findings import WARNING, Finding
from launcher.runs.report import (
    cause_block,
    failed_first_line,
    flight_recorder_lines,
    left_lines,
    plan_line,
    uncopied_lines,
    warning_lines,
    written_lines,
)
from launcher.session.node_state import Census

AT = time.mktime((2026, 11, 20, 9, 16, 31, 0, 0, -1))
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 88, in step
ValueError: the optimizer met a NaN at step 42
"""


@pytest.mark.parametrize(
    ("sizes", "on_cpu", "line"),
    [
        ([8, 8], False, "2 hosts x 8 GPUs = 16 ranks, run R, logs in logs/R"),
        ([1], False, "1 host x 1 GPU = 1 rank, run R, logs in logs/R"),
        ([2, 2], True, "2 hosts x 2 processes = 4 ranks, run R, logs in logs/R"),
        ([8, 8, 4], False, "3 hosts with 8 + 8 + 4 GPUs = 20 ranks, run R, logs in logs/R"),
        ([2, 1], True, "2 hosts with 2 + 1 processes = 3 ranks, run R, logs in logs/R"),
    ],
)
def test_the_plan_in_one_line(sizes, on_cpu, line):
    nodes = tuple(NodePlan(Host(f"n{rank}"), rank, 0, size, "/", {}) for rank, size in enumerate(sizes))
    plan = LaunchPlan(Program(ProgramKind.SCRIPT, "train.py"), nodes, len(nodes), sum(sizes), "10.0.0.1", 1)
    assert plan_line(plan, "R", Path("logs/R"), on_cpu=on_cpu) == line


def test_a_share_of_a_run_by_hand_in_one_line():
    nodes = (NodePlan(Host("n3"), 3, 6, 2, "/", {}),)
    plan = LaunchPlan(Program(ProgramKind.SCRIPT, "train.py"), nodes, 4, 8, "10.0.0.1", 1)
    line = "node rank 3 of 4 nodes: 2 processes, 8 ranks in all, run R, logs in logs/R"
    assert plan_line(plan, "R", Path("logs/R"), on_cpu=True) == line


LEFT = [411, "python", "D"]


def test_each_process_that_can_not_be_ended_is_named():
    line = "  gpu1: pid 411 (python) is in state D, which no signal can end"
    assert left_lines(Census({"gpu1": [LEFT], "gpu2": []}, {})) == [line]
    assert left_lines(Census({"gpu1": [LEFT] * 10}, {})) == [line] * 10
    assert left_lines(Census({"gpu1": [LEFT] * 12}, {})) == [line] * 10 + ["  and 2 more"]


def test_what_a_run_wrote_beside_its_code() -> None:
    names = ("/c/proj", "a/", "b.txt", "c", "d", "e", "f", "g")
    written = {"gpu1": ("/c/proj", "log.txt"), "gpu2": names, "gpu3": names}
    assert written_lines(Census({}, {}, written)) == [
        "  gpu1: the run wrote log.txt next to its code, in /c/proj",
        "  gpu[2-3]: the run wrote a/, b.txt, c, d, e and 2 more next to its code, in /c/proj",
        "    fix: pass --link NAME=DIR, or write elsewhere: the next run gets a new directory, without these",
    ]
    assert written_lines(Census({}, {})) == []


def texts(lines):
    return [line.text for line in lines]


def rank_failure(**more):
    known = {"code": 1, "rank": 11, "local_rank": 3, "gpu": 3, "stderr": TRACEBACK, "stdout": "step 41 loss 7.1\n"}
    return Failure("gpu2", 1, FailureKind.RANK, AT, **(known | more))


def test_the_cause_as_the_design_draws_it():
    cause = find_cause([rank_failure()])
    assert failed_first_line(cause, 2) == "gpu2 rank 11 failed first (exit code 1), stopping the run on 2 hosts"
    assert texts(cause_block(cause, [], 16, Path("logs/20261120-091233/node_1.log"))) == [
        "  gpu2 rank 11 (local rank 3, GPU 3) at 09:16:31:",
        '    File "train.py", line 88, in step',
        "    ValueError: the optimizer met a NaN at step 42",
        "  its last lines:",
        "    step 41 loss 7.1",
        "  full log: logs/20261120-091233/node_1.log",
    ]


def test_a_traceback_of_code_that_was_sent_names_the_file_that_an_editor_can_open():
    there, here = "/root/.cache/launch/trees/20261120-091233/proj", "/home/me/proj"
    stderr = TRACEBACK.replace('"train.py"', f'"{there}/pkg/train.py"')
    lines = texts(cause_block(find_cause([rank_failure(stderr=stderr)]), [], 16, Path("log"), code=(there, here)))
    assert lines[1] == '    File "/home/me/proj/pkg/train.py", line 88, in step'


def test_what_became_of_the_others():
    """Those with the same error, those with another one, and those whose traceback was withheld from the screen."""
    alike = [rank_failure(), rank_failure(rank=3, local_rank=3)]
    other = Failure("gpu1", 0, FailureKind.RANK, AT, code=None, signal=11, rank=0, local_rank=0)
    cause = find_cause(alike)
    told = texts(cause_block(cause, [*alike, other], 16, Path("log"), withheld=3))
    assert told[3] == "  same error on 2 of 16 ranks: 2 on gpu2"
    assert told[-3:] == [
        "  1 other failed as well: 1 on gpu1",
        "  3 other tracebacks in the logs",
        "  full log: log",
    ]


def test_the_error_is_red_and_what_to_do_is_bold():
    stderr = TRACEBACK.replace("ValueError: the optimizer met a NaN at step 42", "MemoryError")
    lines = cause_block(find_cause([rank_failure(stderr=stderr)]), [], 16, Path("log"))
    assert [(line.text.split()[0], line.style) for line in lines if line.style is not Style.TEXT] == [
        ("gpu2", Style.STRONG),
        ("MemoryError", Style.FAILURE),
        ("fix:", Style.STRONG),
    ]


def test_the_cause_where_no_exception_tells():
    cause = find_cause([rank_failure(code=None, signal=9, gpu=None, stderr="", stdout="")])
    assert failed_first_line(cause, 1) == "gpu2 rank 11 failed first (killed by SIGKILL), stopping the run on 1 host"
    first, ending, why, fix, log = texts(cause_block(cause, [], 16, Path("log")))
    assert (first, ending, log) == (
        "  gpu2 rank 11 (local rank 3) at 09:16:31:", "    killed by SIGKILL", "  full log: log",
    )  # fmt: skip
    assert why.startswith("  why: it was killed from outside: ") and fix.startswith("  fix: see which with dmesg -T ")


def test_long_statements_errors_and_many_last_lines_are_cut():
    statement = "".join(f"    argument_{number}={number},\n" for number in range(30))
    stderr = (
        f'Traceback (most recent call last):\n  File "train.py", line 8, in f\n{statement}{"ValueError: x" * 40}\nbye\n'
    )
    stdout = "".join(f"line {number} " + "x" * 400 + "\n" for number in range(20))
    _, place, *rest, log = texts(
        cause_block(find_cause([rank_failure(stderr=stderr, stdout=stdout)]), [], 16, Path("log"))
    )
    assert (place, rest[3], log) == ('    File "train.py", line 8, in f', "      ...", "  full log: log")
    assert (rest[4][:17], len(rest[4]), rest[5]) == ("    ValueError: x", 304, "  its last lines:")
    assert [(line[:11], len(line)) for line in rest[6:]] == [
        *((f"    line {number}", 154) for number in range(15, 20)), ("    bye", 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "more"),
    [(0, []), (8, []), (9, ["  and 1 more: run launch check"])],
)
def test_warnings_are_a_line_each_and_not_too_many(number, more):
    warnings = [Finding(("gpu1", "gpu2"), f"text {index}", "remedy", WARNING) for index in range(number)]
    lines = [f"  gpu[1-2]: text {index}; fix: remedy" for index in range(min(number, 8))]
    assert warning_lines(warnings) == lines + more


def test_files_of_the_flight_recorder_are_named_with_what_reads_them():
    files = [Path(f"logs/r/files/node_{rank // 2}/nccl_trace_rank_{rank}") for rank in range(5)]
    first, command = "  NCCL's flight recorder of 5 ranks: logs/r/files", "torchfrtrace --prefix nccl_trace_rank_"
    assert flight_recorder_lines(files, {}) == [
        first,
        f"    which rank is missing from which collective: {command} logs/r/files",
    ]
    assert flight_recorder_lines([], {}) == []
    assert flight_recorder_lines(files, dict.fromkeys(files[1:], "is cut off")) == [
        first,
        "    don't run torchfrtrace on it: 4 files can't be trusted, such as logs/r/files/node_0/nccl_trace_rank_1 "
        "(is cut off)",
    ]


def test_what_ranks_left_that_did_not_come() -> None:
    files = tuple((f"a{number}", "over 1000 files") for number in range(20))
    uncopied = {"gpu1": (1, (("x\udcff", "unusable name"),)), "gpu2": (400, files), "gpu3": (400, files)}
    assert uncopied_lines(Census({}, {}, uncopied=uncopied)) == [
        "  gpu1: not copied from LAUNCH_FILES: 'x\\udcff' (unusable name)",
        "  gpu[2-3]: not copied from LAUNCH_FILES: a0 (over 1000 files), a1 (over 1000 files), a2 (over 1000 files), "
        "a3 (over 1000 files), a4 (over 1000 files) and 395 more",
        "    fix: write to the working directory instead, and copy from there with launch fetch RUN PATH",
    ]
    different = {f"gpu{number}": (1, ((str(number), "no file"),)) for number in range(12)}
    assert uncopied_lines(Census({}, {}, uncopied=different))[-2] == "  and 2 more"
    assert uncopied_lines(Census({}, {})) == []
