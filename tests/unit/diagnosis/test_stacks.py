"""What faulthandler writes, and the block that is made of it, compared whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.diagnosis.stacks import MAX_FRAMES, Frame, Stack, fold, folded_lines, parse_stack, stack_lines

# Before Python 3.14 no thread has a name; the main one is the oldest, so the last.
FAULTHANDLER = """\
Thread 0x00007f828de776c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f828e9bcb80 (most recent call first):
  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ann/code/train.py", line 120 in step
  File "/home/ann/code/train.py", line 140 in <module>
"""

NAMED = """\
Current thread 0x00007f828e9bcb80 [MainThread] (most recent call first):
  File "train.py", line 1 in <module>

Thread 0x00007f828de776c0 [helper] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 982 in run
"""

WAITING = [
    "torch/distributed/distributed_c10d.py:2806 in all_reduce",
    "torch/distributed/c10d_logger.py:83 in wrapper",
    "train.py:120 in step",
    "train.py:140 in <module>",
]


def waiting(rank, host="gpu1"):
    return Stack(host, rank, parse_stack(FAULTHANDLER, "/home/ann/code"))


def at(rank, *calls, host="gpu2"):
    """A stack of `file:line in function`, innermost first."""
    text = "\n".join(f'  File "{call.split(":")[0]}", line {call.split(":")[1]}' for call in calls)
    return Stack(host, rank, parse_stack(f"Current thread 0x1 (most recent call first):\n{text}"))


# ---- parsing --------------------------------------------------------------------------------------------------------


def test_faulthandlers_text():
    frames = parse_stack(FAULTHANDLER, "/home/ann/code/")
    assert [str(frame) for frame in frames] == WAITING
    assert [frame.is_own for frame in frames] == [False, False, True, True]


def test_a_thread_with_a_name_is_known_by_it():
    assert parse_stack(NAMED) == (Frame("train.py", 1, "<module>"),)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('  File "a "quoted".py", line 3 in f', Frame('a "quoted".py', 3, "f")),
        ('  File "a.py", line 3 in f.<locals>.<lambda>', Frame("a.py", 3, "f.<locals>.<lambda>")),
        ('  File "???", line ??? in f', Frame("???", None, "f")),
        (
            '  File "<frozen runpy>", line 88 in g',
            Frame("<frozen runpy>", 88, "g", is_standard=True, is_own=False),
        ),
        (
            '  File "/usr/lib/python3.13t/queue.py", line 9 in g',
            Frame("queue.py", 9, "g", is_standard=True, is_own=False),
        ),
        ('  File "/x/lib64/python3.8/site-packages/a/b.py", line 9 in g', Frame("a/b.py", 9, "g", is_own=False)),
    ],
)
def test_a_line_is_a_frame(line, frame):
    assert parse_stack(f"Thread 0x1 [MainThread]\n{line}") == (frame,)


@given(st.text(alphabet='Thread \n()"File:,19in<>/.?', max_size=200))
def test_any_text_has_some_frames_or_none(text):
    folded = fold([Stack("a", 0, parse_stack(f"Thread 1\n{text}"))])
    assert folded_lines(folded)[0] == "stacks of 1 rank on 1 host"


@pytest.mark.parametrize(
    "line", ['  File "a.py", line ' + "1" * 5000 + " in f", '  File "a.py", line 1 in ' + "f" * 2000]
)
def test_a_line_without_end_is_no_frame(line):
    assert parse_stack(f"Thread 1\n{line}") == ()


@pytest.mark.parametrize(
    "text", ["", "Error: no such process", "Process 1: x\n\n", '  File "a.py", line 1 in f\n  File "a", line']
)
def test_what_is_no_stack_has_no_frames(text):
    assert parse_stack(text) == ()


# ---- the block ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, -1])
def test_of_a_text_without_end_the_first_and_last_threads_are_read(place):
    threads = [f'Thread {number} "other"\n' + '  File "a.py", line 1 in f\n' * 30_000 for number in (1, 2)]
    threads[place] = 'Thread 3 "MainThread"\n' + '  File "b.py", line 2 in g\n' * 5
    assert [str(frame) for frame in parse_stack("".join(threads))] == ["b.py:2 in g"] * 5
    assert len(parse_stack("Thread 1\n" + '  File "a.py", line 1 in f\n' * 50_000)) < 20_000


def test_the_odd_rank_comes_first():
    others = [waiting(rank, "gpu1" if rank < 8 else "gpu2") for rank in range(16) if rank != 11]
    folded = fold([*others, at(11, "train.py:88 in load_batch", "train.py:119 in step", "train.py:140 in <module>")])
    assert [stack.rank for stack in folded.odd] == [11]
    assert folded_lines(folded) == [
        "stacks of 16 ranks on 2 hosts (gpu2 rank 11 differs from 15 others)",
        "  gpu2 rank 11:",
        "    train.py:140 in <module>",
        "    train.py:119 in step",
        "    train.py:88 in load_batch",
        "  15 ranks on gpu[1-2] (0-10, 12-15):",
        "    train.py:140 in <module>",
        "    train.py:120 in step",
        "    torch/distributed/distributed_c10d.py:2806 in all_reduce",
    ]


@pytest.mark.parametrize(
    ("stacks", "verdict"),
    [
        ([waiting(0)], ""),
        ([waiting(0), waiting(1)], "all are equal"),
        ([at(0, "a.py:1 in f"), at(1, "a.py:2 in f")], "2 different stacks"),
        ([*map(waiting, range(9)), *(at(rank, f"a.py:{rank} in f") for rank in range(9, 13))], "5 different stacks"),
    ],
)
def test_where_nobody_is_odd_nobody_is_named(stacks, verdict):
    assert (fold(stacks).verdict, fold(stacks).odd) == (verdict, ())


def test_of_two_the_one_that_waits_is_not_the_odd_one():
    assert fold([waiting(0), at(1, "a.py:1 in f")]).verdict == "gpu2 rank 1 differs from 1 other"
    assert fold([at(0, "a.py:1 in f"), Stack("gpu2", 1, state="D")]).verdict == "gpu2 rank 1 differs from 1 other"


def test_where_in_a_wait_of_the_standard_library_it_is_makes_no_difference():
    waits = ["/usr/lib/python3.11/threading.py:320 in wait", "/usr/lib/python3.11/queue.py:171 in get"]
    one = at(0, *waits, "train.py:9 in load")
    other = at(1, "/usr/lib/python3.11/queue.py:168 in get", "train.py:9 in load")
    assert fold([one, other]).verdict == "all are equal"
    assert stack_lines(one) == ["train.py:9 in load", "queue.py:171 in get", "threading.py:320 in wait"]


def test_a_rank_that_the_kernel_holds_is_odd_without_a_stack():
    held = Stack("gpu2", 3, state="D", wchan="nfs_wait_bit_killable", reason="it is blocked in the kernel")
    assert folded_lines(fold([*map(waiting, range(3)), held])) == [
        "stacks of 4 ranks on 2 hosts (gpu2 rank 3 differs from 3 others)",
        "  gpu2 rank 3:",
        "    state D: it waits in the kernel (nfs_wait_bit_killable), where no signal reaches it",
        "  3 ranks on gpu1 (0-2):",
        "    train.py:140 in <module>",
        "    train.py:120 in step",
        "    torch/distributed/distributed_c10d.py:2806 in all_reduce",
    ]


def test_a_stopped_rank_and_one_whose_node_is_silent():
    assert stack_lines(Stack("a", 0, parse_stack(NAMED), state="T")) == [
        "state T: it is suspended (kill -STOP, or a debugger)",
        "train.py:1 in <module>",
    ]
    assert stack_lines(Stack("a", 0, state="T", reason="x")) == [
        "state T: it is suspended (kill -STOP, or a debugger)",
        "no stack: x",
    ]
    assert stack_lines(Stack("a", 0, is_silent=True)) == ["no response from its host"]
    assert fold([waiting(0), waiting(1), Stack("b", 2, is_silent=True)]).verdict == "b rank 2 differs from 2 others"


def test_a_node_without_stacks_is_no_odd_one():
    """All of it is told, and last."""
    missing = [Stack("gpu2", rank, reason="not ready") for rank in (4, 5)]
    folded = fold([*missing, *map(waiting, range(4))])
    assert folded.odd == ()
    assert folded_lines(folded)[0] == "stacks of 6 ranks on 2 hosts"
    assert folded_lines(folded)[-2:] == ["  2 ranks on gpu2 (4-5):", "    no stack: not ready"]


def test_a_deep_stack_shows_where_it_is_and_how_the_user_came_there():
    inner = [f"/v/lib/python3.11/site-packages/lib/deep.py:{line} in f{line}" for line in range(20)]
    own = ["train.py:7 in step", "train.py:8 in main"]
    started = ["<frozen runpy>:88 in _run_code", "<frozen runpy>:198 in _run_module_as_main"]
    lines = stack_lines(at(0, *inner, *own, *started))
    assert lines == [
        "train.py:8 in main",
        "train.py:7 in step",
        "...",
        "lib/deep.py:5 in f5",
        "lib/deep.py:4 in f4",
        "lib/deep.py:3 in f3",
        "lib/deep.py:2 in f2",
        "lib/deep.py:1 in f1",
        "lib/deep.py:0 in f0",
    ]
    assert len([line for line in lines if line != "..."]) == MAX_FRAMES


def test_calls_of_the_standard_library_between_others_are_left_out_without_a_word():
    imports = [
        "<frozen importlib._bootstrap>:1 in _call",
        "/usr/lib/python3.11/runpy.py:9 in run",
    ]
    stack = at(0, "a.py:1 in <module>", *imports, *imports, "b.py:2 in <module>", *imports, "train.py:3 in <module>")
    assert stack_lines(stack) == [
        "train.py:3 in <module>",
        "b.py:2 in <module>",
        "runpy.py:9 in run",
        "<frozen importlib._bootstrap>:1 in _call",
        "a.py:1 in <module>",
    ]


def test_many_different_stacks_are_cut():
    lines = folded_lines(fold([at(rank, f"a.py:{rank} in f") for rank in range(20)]))
    assert lines[0] == "stacks of 20 ranks on 1 host (20 different stacks)"
    assert lines[-1] == "  and 8 more that differ"
    assert len(lines) == 2 + 2 * 12
