"""The cause of a failure: which of many it is, what of its last lines says so, and why it happened."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from launcher.diagnosis.cause import find_cause, find_signature
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.tracebacks import shorten_traceback

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
TRACEBACK = """\
Traceback (most recent call last):
  File "{folder}/train.py", line {line}, in <module>
    main()
  File "{folder}/data_v2.py", line 88, in read
    return table[key]
  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 1200, in load
    raise RuntimeError(message)
{error}
"""


def failure(at=100.0, *, host="gpu1", rank=0, code=1, **more):
    return Failure(host=host, node_rank=0, kind=FailureKind.RANK, at=at, rank=rank, local_rank=rank, code=code, **more)


# which one


def test_a_rank_that_slurm_has_killed_is_not_the_cause_of_what_slurm_then_reports():
    killed = failure(code=None, signal=signal.SIGKILL, in_slurm_step=True)
    cancelled = Failure("gpu2", 1, FailureKind.CONNECTION, 101.0, text="Slurm has cancelled step 7.0")
    assert not killed.is_final
    assert cancelled.is_final
    assert find_cause([killed, cancelled]).failure is cancelled
    assert find_cause([replace(killed, oom="probable"), cancelled]).failure.rank == 0
    assert find_cause([killed, replace(cancelled, text="srun was killed by signal 9")]).failure.text
    assert find_cause([killed, replace(cancelled, text="no heartbeat for 15 s")]).failure is killed
    helper = Failure("gpu1", 0, FailureKind.SUPERVISOR, 100.0, text="its parent process was killed", in_slurm_step=True)
    assert find_cause([helper, cancelled]).failure is cancelled
    assert not helper.is_final
    assert replace(helper, in_slurm_step=False).is_final


SECONDARY = [
    failure(code=None, signal=signal.SIGTERM),
    failure(code=143, stderr="Terminated\n"),  # as a shell says it
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
    replace(failure(code=None, text="Connection reset by peer"), kind=FailureKind.CONNECTION, stderr="Broken pipe\n"),
    failure(code=None, signal=signal.SIGKILL, stderr="Broken pipe\n"),
    failure(code=137, oom="probable", stderr="Broken pipe\n"),
]


@pytest.mark.parametrize(("candidate", "expected"), [(x, True) for x in SECONDARY] + [(x, False) for x in PRIMARY])
def test_a_consequence_is_known_by_what_it_says(candidate, expected):
    assert candidate.is_secondary is expected


@pytest.mark.parametrize("secondary", SECONDARY)
def test_a_cause_goes_before_its_consequences_and_then_time_counts(secondary):
    late, later = failure(105.0, rank=2), failure(106.0, rank=1)
    assert find_cause([secondary, later, late]).failure == late
    assert find_cause([replace(secondary, at=103.0, rank=5), secondary]).failure == secondary


def test_what_was_told_stays_so_where_others_have_the_same_error():
    alike = [failure(100.0 + rank, rank=rank, stderr=SIMPLE.replace("42", str(rank))) for rank in range(3)]
    assert [find_cause(alike).failure, find_cause(alike, told=alike[2]).failure] == [alike[0], alike[2]]
    assert [other.rank for other in find_cause(alike, told=alike[2]).same] == [0, 1]
    assert find_cause([*alike, failure(99.0, rank=7)], told=alike[2]).failure.rank == 7


# in words


@pytest.mark.parametrize(
    ("failed", "exit_code", "headline"),
    [
        (failure(rank=11, host="gpu2", code=3), 3, "gpu2 rank 11 failed first (exit code 3)"),
        (failure(code=None, signal=9), 137, "gpu1 rank 0 failed first (killed by SIGKILL)"),
        (failure(code=None), 1, "gpu1 rank 0 failed first (exit code unknown)"),
        (
            failure(code=None, signal=9, oom="probable"),
            137,
            "gpu1 rank 0 failed first (killed by SIGKILL: probably out of memory)",
        ),
        (
            Failure("gpu2", 1, FailureKind.CONNECTION, 1.0, text="no heartbeat for 15 s"),
            69,
            "lost gpu2 (no heartbeat for 15 s)",
        ),
        (Failure("gpu2", 1, FailureKind.TORCHRUN, 1.0, code=1), 1, "gpu2 torchrun failed first (exit code 1)"),
        (
            Failure("gpu2", 1, FailureKind.SUPERVISOR, 1.0, text="its parent process was killed"),
            1,
            "gpu2 helper failed first (its parent process was killed)",
        ),
    ],
)
def test_a_failure_in_words(failed, exit_code, headline):
    assert (failed.exit_code, failed.headline) == (exit_code, headline)


# last lines


def test_last_lines_leave_out_what_the_traceback_says():
    stderr = "".join(f"warning {number}\n" for number in range(9)) + "[rank0]: noise\n\n"
    failed = failure(stderr=stderr + SIMPLE, stdout="step 40\n\nstep 41 loss 7.1   \n" + "x" * 400)
    cause = find_cause([failed])
    assert cause.last_lines == (
        "step 40",
        "step 41 loss 7.1",
        "x" * 300,
        *(f"warning {number}" for number in range(5, 9)),
        "[rank0]: noise",
    )
    assert cause.traceback == tuple(shorten_traceback(SIMPLE.splitlines()))


def test_without_a_traceback_the_last_lines_tell():
    """The very last is one of stderr: a list of runs, and a screen with little room, show that one alone."""
    cause = find_cause([failure(code=139, stderr="free(): invalid pointer\n", stdout="a\nb\nc\nd\ne\nf\n")])
    assert (cause.traceback, cause.last_lines) == ((), ("b", "c", "d", "e", "f", "free(): invalid pointer"))


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


def test_the_error_of_a_data_loader_worker_is_named():
    assert "ValueError: no such image" in find_cause([failure(stderr=LOADER_ERROR)]).traceback


def test_an_error_that_was_handled_long_ago_hides_no_later_line():
    handled = SIMPLE.replace("ValueError", "OSError") + "retrying\nstep 8\n"
    assert "step 8" in find_cause([failure(stderr=handled + SIMPLE)]).last_lines


def test_a_killed_process_did_not_die_of_an_exception():
    cause = find_cause([failure(code=None, signal=signal.SIGKILL, stderr=SIMPLE + "retrying\nstep 8\n")])
    assert (cause.traceback, "step 8" in cause.last_lines) == ((), True)


# why

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
ABORTED = """\
[rank{rank}]:[E626 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=1)
[rank{rank}]:[E626 ProcessGroupNCCL.cpp:630] [Rank {rank}] To avoid data inconsistency, we are taking the process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank {rank}] Process group watchdog thread terminated with exception
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:618 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x79ebd4f6c446 in libc10.so)
frame #1: <unknown function> + 0xe4271b (0x79eb37e4271b in libtorch_cuda.so)
frame #2: <unknown function> + 0x145c0 (0x79ec23a1b5c0 in libtorch.so)
frame #3: <unknown function> + 0x94ac3 (0x79ec2da94ac3 in libc.so.6)

Fatal Python error: Aborted
"""


def raising(error):
    return SIMPLE.rpartition("ValueError")[0] + error


def why(*failures, ranks=()):
    explanation = find_cause(failures, ranks).explanation
    return None if explanation is None else explanation.name


@pytest.mark.parametrize(
    ("failed", "name"),
    [
        (failure(stderr=raising(FULL)), "gpu-memory"),
        (failure(stderr=raising("RuntimeError: step 42\n" + FULL)), "gpu-memory"),  # in a later line of its message
        (failure(stderr="".join(f"[rank0]: {line}\n" for line in raising(FULL).splitlines())), "gpu-memory"),
        (failure(code=2, stderr="usage: x [-h]\nx: error: unrecognized arguments: --gpus 8\n"), "arguments"),
        (failure(code=3, stderr="a\n" + FULL + "bye\n"), "gpu-memory"),
        (failure(code=3, stdout="x NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n"), "duplicate-gpu"),
        (failure(code=3, stderr="MemoryError\n", stdout=FULL), "host-memory"),  # stderr goes first
        (failure(code=3, stderr=FULL + "OSError: [Errno 28] No space left on device\n"), "disk-full"),  # and the latest
        (failure(code=None, signal=signal.SIGABRT, stderr="CUDA error: device-side assert triggered\n"), "gpu-assert"),
        (failure(code=127), "ending"),
        (failure(code=137, oom="probable", stderr=FULL), "ending"),
        (failure(code=None, signal=signal.SIGSEGV, stdout="step 41\n"), "ending"),
        (replace(failure(code=1, stderr=FULL), kind=FailureKind.TORCHRUN), "gpu-memory"),
    ],
)
def test_a_failure_is_explained_by_what_it_said(failed, name):
    assert why(failed) == name


@pytest.mark.parametrize(
    "failed",
    [
        failure(code=3, stdout="step 41\n"),
        failure(stderr=SIMPLE),
        failure(stderr=FULL + "retrying with a smaller batch\n" + SIMPLE),  # it lived on
        failure(stderr=raising(FULL) + "retrying\n" + SIMPLE),
        failure(code=3, stderr=FULL + "step\n" * 40),
        Failure("gpu2", 1, FailureKind.CONNECTION, 1.0, text="it sent an invalid message: x", stderr="Broken pipe\n"),
    ],
)
def test_what_explains_nothing_is_left_unsaid(failed):
    assert why(failed) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_line_explains_an_end_that_came_from_outside(number):
    assert why(failure(code=None, signal=number, stderr=raising(FULL))) == "ending"


def test_a_kill_for_lack_of_memory_is_told_from_others():
    others = find_cause([failure(code=None, signal=9)])
    assert others.explanation.cause.startswith("it was killed from outside: ")
    found = find_cause([failure(code=None, signal=9, oom="probable")])
    assert found.failure.ending == "killed by SIGKILL: probably out of memory (the kernel's OOM killer was at work)"
    assert found.explanation.cause.startswith("the host's memory was full, ")


def test_a_lost_peer_is_explained_by_the_warning_before_it():
    warning = "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    assert why(failure(stderr=CLOSED)) == "peer-gone"
    assert why(failure(stderr=CLOSED, stdout=warning)) == "shared-memory"


def test_an_abort_of_the_watchdog_is_known_under_its_stack():
    aborted = failure(code=None, signal=signal.SIGABRT, stderr=ABORTED.format(rank=0))
    assert aborted.is_secondary
    assert why(aborted) == "watchdog"


def test_an_abort_after_the_end_of_the_script_explains_no_rank_that_raised_an_exception():
    said = "terminate called without an active exception\n"
    assert why(failure(code=None, signal=signal.SIGABRT, stderr=said)) == "exit-aborted"
    assert why(failure(code=None, signal=signal.SIGABRT, stderr=CLOSED + said)) == "peer-gone"
    assert why(failure(code=None, signal=signal.SIGABRT, stderr=SIMPLE + said)) is None


def test_a_stack_of_native_code_is_no_last_line():
    aborted = failure(code=None, signal=signal.SIGABRT, stderr="step 41\n" + ABORTED.format(rank=0))
    cause = find_cause([aborted])
    assert cause.traceback == ("Fatal Python error: Aborted",)
    assert [line[:20] for line in cause.last_lines] == [
        "step 41",
        "[rank0]:[E626 Proces",
        "[rank0]:[E626 Proces",
        "terminate called aft",
        "  what():  [Rank 0] ",
    ]


def test_the_rank_that_did_not_come_is_named():
    failures = [
        failure(100.0 + rank / 10, rank=rank, code=None, signal=signal.SIGABRT, stderr=ABORTED.format(rank=rank))
        for rank in (0, 2, 3)
    ]
    hanging = failure(109.0, rank=1, code=None, signal=signal.SIGTERM, after_stop=True, stdout="step 41\n")
    cause = find_cause([*failures, hanging], range(4))
    assert cause.failure.rank == 0
    assert cause.explanation.cause == "ranks 0, 2-3 waited in ALLREDUCE number 808, and rank 1 never joined"


def test_a_rank_that_hangs_may_have_said_why():
    waiting = failure(code=None, signal=signal.SIGABRT, stderr=ABORTED.format(rank=0))
    hanging = failure(109.0, rank=1, signal=signal.SIGTERM, after_stop=True, stderr="can't start new thread\n")
    explanation = find_cause([waiting, hanging], range(2)).explanation
    assert explanation.cause == "gpu1 rank 1 says that the limit on processes and threads is reached on this host"


def test_what_a_rank_says_because_we_stop_it_explains_nothing():
    waiting = failure(stderr=CLOSED)
    stopped = failure(109.0, rank=1, after_stop=True, stderr="DataLoader worker (pid 7) exited unexpectedly\n")
    assert why(waiting, stopped) == "peer-gone"


def test_a_thousand_ranks_are_judged_while_the_nodes_wait():
    """The loop that answers them stands still meanwhile; they wait for 15 s."""
    lines = "".join(f"[rank7]: a warning with some words {number}\n" for number in range(300))
    failures = [failure(rank=rank, stderr=lines + CLOSED, stdout=lines) for rank in range(1000)]
    began = time.process_time()
    assert why(*failures, ranks=range(1000)) == "peer-gone"
    assert time.process_time() - began < 15  # of CPU; it takes 0.8 s


HANG = "no output for 10 min (--hang-timeout)"


def test_a_hang_is_a_cause_of_its_own():
    """What the odd rank said last is told; an error that it met before is not its end."""
    hang = failure(rank=3, code=None, text=HANG, stderr=SIMPLE + "Connection refused\n")
    cause = find_cause([replace(hang, kind=FailureKind.HANG)])
    assert (cause.failure.exit_code, cause.failure.headline, cause.traceback) == (124, HANG, ())
    assert (cause.failure.subject, cause.failure.is_secondary) == ("gpu1 rank 3", False)
    assert cause.last_lines[-1] == "Connection refused"


def signature(kind: FailureKind = FailureKind.RANK, **more: Any) -> str | None:
    at = {"host": "gpu1", "node_rank": 0, "rank": 0, "local_rank": 0, "at": 100.0, **more}
    cause = find_cause([Failure(kind=kind, **at)])
    assert cause is not None
    return find_signature(cause)


def raised_by(error: str, line: int = 90, folder: str = "/data") -> str:
    return TRACEBACK.format(error=error, line=line, folder=folder)


def test_an_error_is_known_by_its_type_and_the_user_s_function() -> None:
    mine = signature(code=1, stderr=raised_by("KeyError: 'sample 4711'"))
    assert mine == "KeyError in data_vN.py:read"
    elsewhere = raised_by("KeyError: 'sample 4'", 91, "/scratch/ann/17")
    assert mine == signature(code=1, host="gpu2", rank=9, stderr=elsewhere)
    assert mine != signature(code=1, stderr=raised_by("ValueError: 'sample 4711'"))


def test_a_known_cause_goes_before_its_words() -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB"
    found = {signature(code=1, stderr=raised_by(words.format(size))) for size in (2, 3)}
    assert found == {"gpu-memory"}


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ({"code": 3}, "exit code 3"),
        ({"signal": int(signal.SIGFPE)}, "killed by SIGFPE"),
        ({"code": 0}, "finished before the others"),
    ],
)
def test_without_an_error_the_ending_tells(ending: dict[str, int], expected: str) -> None:
    assert signature(**ending) == expected


@pytest.mark.parametrize(
    "lost",
    [
        {"code": 1, "stderr": raised_by("RuntimeError: Connection closed by peer [10.0.0.2]:4711")},
        {"kind": FailureKind.CONNECTION, "text": "no heartbeat for 15 s"},
        {"kind": FailureKind.HANG, "text": "no output for 10 min"},
    ],
)
def test_what_follows_from_another_failure_has_no_signature(lost: dict[str, Any]) -> None:
    assert signature(**lost) is None
