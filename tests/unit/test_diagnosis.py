"""The cause of a failure: which of many it is, and what of its last lines says so."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from launcher.diagnosis import Failure, extract_traceback, find_cause, shorten_traceback, signal_name

SIMPLE = """\
Traceback (most recent call last):
  File "/data/train.py", line 90, in <module>
    main()
  File "/data/train.py", line 88, in step
    raise ValueError("the optimizer met a NaN at step 42")
ValueError: the optimizer met a NaN at step 42
"""
CLOSED = SIMPLE.replace(
    "ValueError: the optimizer met a NaN at step 42", "RuntimeError: Connection closed by peer [::1]:5"
)


def failure(at=100.0, *, host="gpu1", rank=0, code=1, **more):
    return Failure(host=host, node_rank=0, what="rank", at=at, rank=rank, local_rank=rank, code=code, **more)


# which one


def test_nothing_failed():
    assert find_cause([]) is None


SECONDARY = [
    failure(code=None, signal=signal.SIGTERM),
    failure(after_stop=True),
    failure(stderr=CLOSED),
    failure(
        stderr="[rank1]:[E1120 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(\n"
    ),
    failure(stderr="store->get('0:1') got error: x\nand\nmore\n"),
    failure(stderr=SIMPLE.replace("ValueError:", "torch.distributed.DistBackendError:")),
    failure(stderr="[rank0]: torch.distributed.DistNetworkError: The client socket has timed out\n"),
]
PRIMARY = [
    failure(),
    failure(code=None, signal=signal.SIGKILL),
    failure(stderr=SIMPLE),
    failure(stderr="Connection closed by peer\n" + SIMPLE),
    failure(stderr=SIMPLE + "Connection closed by peer\n"),
    failure(stderr="Broken pipe\none\ntwo\nthree\n"),
    replace(failure(code=None, text="Connection reset by peer"), what="connection", stderr="Broken pipe\n"),
]


@pytest.mark.parametrize(("candidate", "expected"), [(x, True) for x in SECONDARY] + [(x, False) for x in PRIMARY])
def test_a_consequence_is_known_by_what_it_says(candidate, expected):
    assert candidate.is_secondary is expected


@pytest.mark.parametrize("secondary", SECONDARY)
def test_a_cause_goes_before_its_consequences_and_then_time_counts(secondary):
    late, later = failure(105.0, rank=2), failure(106.0, rank=1)
    assert find_cause([secondary, later, late]).failure == late
    assert find_cause([replace(secondary, at=103.0, rank=5), secondary]).failure == secondary


# in words


@pytest.mark.parametrize(
    ("failed", "exit_code", "headline"),
    [
        (failure(rank=11, host="gpu2", code=3), 3, "gpu2 rank 11 failed first (exit code 3)"),
        (failure(code=None, signal=9), 137, "gpu1 rank 0 failed first (killed by SIGKILL)"),
        (failure(code=None, signal=99), 227, "gpu1 rank 0 failed first (killed by signal 99)"),
        (failure(code=None), 1, "gpu1 rank 0 failed first (exit code unknown)"),
        (
            Failure("gpu2", 1, "connection", 1.0, text="no sign of life for 15 s"),
            69,
            "lost gpu2 (no sign of life for 15 s)",
        ),
        (Failure("gpu2", 1, "torchrun", 1.0, code=1), 1, "gpu2 torchrun failed first (exit code 1)"),
        (Failure("gpu2", 1, "supervisor", 1.0, signal=9), 137, "gpu2 supervisor failed first (killed by SIGKILL)"),
        (
            Failure("gpu2", 1, "supervisor", 1.0, text="its guardian was killed"),
            1,
            "gpu2 supervisor failed first (its guardian was killed)",
        ),
    ],
)
def test_a_failure_in_words(failed, exit_code, headline):
    assert (failed.exit_code, failed.headline) == (exit_code, headline)


def test_names_of_signals():
    assert [signal_name(number) for number in (9, 11, 99)] == ["SIGKILL", "SIGSEGV", "signal 99"]


# tracebacks


def test_no_traceback():
    assert extract_traceback("") == extract_traceback("a\n  File \n") == shorten_traceback([]) == []


@pytest.mark.parametrize(
    "stderr",
    [
        SIMPLE,
        SIMPLE[:-1],
        SIMPLE.replace("\n", "\r\n"),
        "noise\n" + SIMPLE + "more noise\n  indented\n",
        "".join(f"[rank3]: {line}\n" for line in SIMPLE.splitlines()),
        SIMPLE.replace("ValueError: the optimizer met a NaN at step 42", "KeyError: 'lr'") + "\n"
        "During handling of the above exception, another exception occurred:\n\n" + SIMPLE,
        SIMPLE + "".join(f"[rank11]: {line}\n" for line in SIMPLE.splitlines()) + "W1120 torchrun says more\n",
    ],
)
def test_the_last_traceback_is_found(stderr):
    assert extract_traceback(stderr) == SIMPLE.splitlines()
    assert shorten_traceback(extract_traceback(stderr)) == [
        'File "/data/train.py", line 88, in step',
        '  raise ValueError("the optimizer met a NaN at step 42")',
        "ValueError: the optimizer met a NaN at step 42",
    ]


FOREIGN = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/home/ann/train.py", line 7, in forward
    return self.layer(x)
           ~~~~~~~~~~^^^
  File "/usr/lib/python3/dist-packages/torch/nn/functional.py", line 2, in linear
    return torch._C._nn.linear(x)
  File "/opt/conda/lib/python3.11/contextlib.py", line 81, in inner
    return func(*args)
RuntimeError: mat1 and mat2 shapes cannot be multiplied

"""


def test_the_innermost_frame_of_the_user_is_shown():
    assert shorten_traceback(extract_traceback(FOREIGN)) == [
        'File "/home/ann/train.py", line 7, in forward',
        "  return self.layer(x)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]


def test_where_all_frames_are_foreign_the_innermost_is_shown():
    lines = extract_traceback(FOREIGN.replace("/home/ann/", "/v/site-packages/"))
    assert shorten_traceback(lines) == [
        'File "/opt/conda/lib/python3.11/contextlib.py", line 81, in inner',
        "  return func(*args)",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]


@pytest.mark.parametrize("count", range(1, 6))
def test_a_traceback_that_was_cut_off_is_shown_as_far_as_it_goes(count):
    lines = SIMPLE.splitlines()[:count]
    short = shorten_traceback(extract_traceback("\n".join(lines)))
    assert short[-1].strip() == lines[-1].strip()
    assert len(short) == len(set(short)) <= 3


def stderr_of(code):
    """Return what this Python prints for a program that fails."""
    return subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=False).stderr


def test_an_error_of_several_lines_is_named_by_its_first():
    short = shorten_traceback(extract_traceback(stderr_of("raise ValueError('one\\ntwo\\n  three')")))
    assert short == ['File "<string>", line 1, in <module>', "ValueError: one"]


def test_a_chained_exception_is_named_by_its_last():
    code = "try: 1 / 0\nexcept ZeroDivisionError as error: raise OSError('the end') from error"
    assert shorten_traceback(extract_traceback(stderr_of(code)))[-1] == "OSError: the end"


def test_last_lines_leave_out_what_the_traceback_says():
    stderr = "".join(f"warning {number}\n" for number in range(9)) + "[rank0]: noise\n\n"
    failed = failure(stderr=stderr + SIMPLE, stdout="step 40\n\nstep 41 loss 7.1   \n" + "x" * 400)
    cause = find_cause([failed])
    assert cause.last_lines == (
        *(f"warning {number}" for number in range(5, 9)),
        "[rank0]: noise",
        "step 40",
        "step 41 loss 7.1",
        "x" * 300,
    )
    assert cause.traceback == tuple(shorten_traceback(SIMPLE.splitlines()))


def test_without_a_traceback_the_last_lines_tell():
    cause = find_cause([failure(code=139, stderr="free(): invalid pointer\n", stdout="a\nb\nc\nd\ne\nf\n")])
    assert (cause.traceback, cause.last_lines) == ((), ("free(): invalid pointer", "b", "c", "d", "e", "f"))


LOADER_ERROR = """\
Traceback (most recent call last):
  File "/data/train.py", line 9, in <module>
    for batch in loader:
  File "/v/site-packages/torch/_utils.py", line 733, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/data/train.py", line 4, in __getitem__
    raise ValueError("no such image")
ValueError: no such image

"""
GROUP = """\
step 7
  + Exception Group Traceback (most recent call last):
  |   File "/data/train.py", line 3, in <module>
  |     raise ExceptionGroup("several", [OSError("disk"), KeyError("lr")])
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | OSError: disk
    +---------------- 2 ----------------
    | KeyError: 'lr'
    +------------------------------------
"""


def test_the_error_of_a_data_loader_worker_is_named():
    assert "ValueError: no such image" in find_cause([failure(stderr=LOADER_ERROR)]).traceback


def test_an_exception_group_is_shown_somehow():
    cause = find_cause([failure(stderr=GROUP)])
    assert any("ExceptionGroup: several" in line for line in (*cause.traceback, *cause.last_lines))


def test_an_error_that_was_handled_long_ago_hides_no_later_line():
    handled = SIMPLE.replace("ValueError", "OSError") + "retrying\nstep 8\n"
    assert "step 8" in find_cause([failure(stderr=handled + SIMPLE)]).last_lines


def test_a_killed_process_did_not_die_of_an_exception():
    cause = find_cause([failure(code=None, signal=signal.SIGKILL, stderr=SIMPLE + "retrying\nstep 8\n")])
    assert (cause.traceback, "step 8" in cause.last_lines) == ((), True)
