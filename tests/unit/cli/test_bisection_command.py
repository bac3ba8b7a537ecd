"""`test-distributed` that fails: when the hosts to blame are searched, and what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli import runner, test_distributed
from launcher.cli.options.request import Request
from launcher.cli.test_distributed import is_to_bisect
from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.hosts.host import Host
from launcher.runs.records import Result
from launcher.session.node_state import Census


def make_result(kind: FailureKind | None, exit_code: int = 1) -> Result:
    failure = Failure("n1", 0, kind or FailureKind.RANK, 0.0, rank=3, code=exit_code)
    return Result(exit_code, 1.0, Census({}, {}), Cause(failure, (), ()) if kind else None)


@pytest.mark.parametrize(
    ("kind", "is_wanted"),
    [
        (FailureKind.RANK, True),
        (FailureKind.TORCHRUN, True),
        (FailureKind.CONNECTION, False),
        (FailureKind.SUPERVISOR, False),
        (FailureKind.HANG, False),
        (None, False),
    ],
)
def test_what_is_searched(kind: FailureKind | None, is_wanted: bool) -> None:
    assert is_to_bisect(make_result(kind)) is is_wanted


def test_culprits_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    monkeypatch.setattr(runner, "run_recorded", lambda *_: (make_result(FailureKind.RANK, 3), tmp_path))
    monkeypatch.setattr(test_distributed, "print_culprits", lambda *words, **__: searched.append(words))
    monkeypatch.setattr(test_distributed, "make_job", lambda *_: None)
    request, hosts = Request(cpu=True, log_dir=tmp_path), [Host("a", source="x"), Host("b", source="x")]
    assert test_distributed.run_tests(request, hosts, lambda hosts, say: None) == 3  # type: ignore[arg-type, return-value]
    assert len(searched) == 1
