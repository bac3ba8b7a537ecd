"""Which failures count as the same one again."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from launcher.diagnosis.cause import find_cause, find_signature
from launcher.diagnosis.failure import Failure, FailureKind

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


def signature(kind: FailureKind = FailureKind.RANK, **more: Any) -> str | None:
    at = {"host": "gpu1", "node_rank": 0, "rank": 0, "local_rank": 0, "at": 100.0, **more}
    cause = find_cause([Failure(kind=kind, **at)])
    assert cause is not None
    return find_signature(cause)


def raising(error: str, line: int = 90, folder: str = "/data") -> str:
    return TRACEBACK.format(error=error, line=line, folder=folder)


def test_an_error_is_known_by_its_type_and_the_user_s_function() -> None:
    mine = signature(code=1, stderr=raising("KeyError: 'sample 4711'"))
    assert mine == "KeyError in data_vN.py:read"
    elsewhere = raising("KeyError: 'sample 4'", 91, "/scratch/ann/17")
    assert mine == signature(code=1, host="gpu2", rank=9, stderr=elsewhere)
    assert mine != signature(code=1, stderr=raising("ValueError: 'sample 4711'"))


def test_a_known_cause_goes_before_its_words() -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB"
    found = {signature(code=1, stderr=raising(words.format(size))) for size in (2, 3)}
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
        {"code": 1, "stderr": raising("RuntimeError: Connection closed by peer [10.0.0.2]:4711")},
        {"kind": FailureKind.CONNECTION, "text": "no heartbeat for 15 s"},
        {"kind": FailureKind.HANG, "text": "no output for 10 min"},
    ],
)
def test_what_follows_from_another_failure_has_no_signature(lost: dict[str, Any]) -> None:
    assert signature(**lost) is None
