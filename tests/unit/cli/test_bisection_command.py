"""The search for the hosts that fail, as the command line makes it: what is run when, what is said, what ends it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.cli import bisection, runner, test_distributed
from launcher.cli.bisection import StoppedError, describe_cause, is_to_bisect, search
from launcher.cli.option_groups import OutputOptions, PythonEnvironment, Timeouts
from launcher.cli.test_distributed import CollectivesTest
from launcher.commands.bisection import Group, Together, Verdict
from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.hosts.host import Host
from launcher.runs.result import Result
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


@pytest.mark.parametrize(
    ("traceback", "last_lines", "text"),
    [
        (("  File 'x'", "ValueError: no"), ("a", "b"), "n1 rank 3, exit code 1: ValueError: no"),
        (
            (),
            ("a", "  all_reduce fp32 did not finish in 20 s "),
            "n1 rank 3, exit code 1: all_reduce fp32 did not finish in 20 s",
        ),
        ((), (), "n1 rank 3, exit code 1"),
    ],
)
def test_a_cause_in_one_line(traceback: tuple[str, ...], last_lines: tuple[str, ...], text: str) -> None:
    cause = make_result(FailureKind.RANK).cause
    assert cause is not None
    assert describe_cause(Cause(cause.failure, traceback, last_lines)) == text


def test_runs_of_a_batch_go_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """The first three wait for each other, so one after the other would never end."""

    async def find() -> Verdict:
        begun: list[Group] = []
        all_begun = asyncio.Event()

        async def run_group(group: Group) -> str:
            begun.append(group)
            if len(begun) == 3:
                all_begun.set()
            await all_begun.wait()
            return "a1 and a3 don't meet" if {"a1", "a3"} <= set(group) else ""

        return await asyncio.wait_for(search(["a1", "a2", "a3"], run_group), DEADLINE_S)

    assert asyncio.run(find()) == Verdict((), (Together(("a1", "a3"), ("a1", "a3")),))
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:3]) == ["testing a1 alone: ok", "testing a2 alone: ok", "testing a3 alone: ok"]
    assert lines[3:] == [
        "testing a[2-3]: ok",
        "testing a[1,3]: FAILED (a1 and a3 don't meet)",
        "testing a[1-2]: ok",
    ]


def test_a_signal_ends_the_search(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that have begun end first; those that wait for a place don't begin."""
    monkeypatch.setattr(bisection, "SIDE_BY_SIDE", 2)
    begun: list[Group] = []

    async def run_group(group: Group) -> str:
        begun.append(group)
        raise StoppedError(signal.SIGINT)

    with pytest.raises(StoppedError) as stop:
        asyncio.run(search(["a", "b", "c", "d"], run_group))
    assert stop.value.number == signal.SIGINT
    assert begun == [("a",)]
    assert capsys.readouterr().err == ""


def test_culprits_are_searched_before_a_picture_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a node wrote may be anything; neither the search nor the exit code is lost for it."""
    results = tmp_path / "files" / "node_0" / "results.json"
    results.parent.mkdir(parents=True)
    results.write_text("{")
    monkeypatch.setattr(runner, "run_recorded", lambda *_: (make_result(FailureKind.RANK, 3), tmp_path))
    monkeypatch.setattr(bisection, "find_culprits", lambda *_, **__: print("searched"))
    monkeypatch.setattr(test_distributed, "make_job", lambda *_: None)
    test = CollectivesTest(1, True, None, tmp_path / "p.svg", PythonEnvironment(), Timeouts())
    output = OutputOptions(quiet=False, ranks=None, as_json=False, log_dir=tmp_path, verbose=False)
    hosts = [Host("a", source="x"), Host("b", source="x")]
    assert test_distributed.run_tests(test, hosts, lambda hosts, say: None, output) == 3  # type: ignore[arg-type, return-value]
    said = capsys.readouterr()
    assert said.out == "searched\n"
    assert said.err.startswith("test-distributed: no plot: ")
