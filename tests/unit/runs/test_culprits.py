"""The tests of groups of hosts: what is run when, what is said, what ends them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines.patience import DEADLINE_S

from launcher.errors import HostFailure, HostFailureKind, HostsUnreachable
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.output.console import Console
from launcher.output.output_streams import Style
from launcher.output.run_folder import RunRecord
from launcher.runs import culprits
from launcher.runs.bisection import Group, Together, Verdict
from launcher.runs.culprits import NoVerdictError, find_between_attempts, search
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.session.signals import Interrupted
from launcher.transports.base import Transport


def test_runs_of_a_batch_go_side_by_side() -> None:
    """The first three wait for each other, so one after the other would never end."""

    told: list[tuple[str, str]] = []

    async def find() -> Verdict:
        begun: list[Group] = []
        all_begun = asyncio.Event()

        async def run_group(group: Group) -> str:
            begun.append(group)
            if len(begun) == 3:
                all_begun.set()
            await all_begun.wait()
            return "a1 and a3 don't meet" if {"a1", "a3"} <= set(group) else ""

        return await asyncio.wait_for(
            search(["a1", "a2", "a3"], run_group, lambda *test: told.append(test)), DEADLINE_S
        )

    assert asyncio.run(find()) == Verdict((), (Together(("a1", "a3"), ("a1", "a3")),))
    assert sorted(told[:3]) == [("a1 alone", ""), ("a2 alone", ""), ("a3 alone", "")]
    assert told[3:] == [("a[2-3]", ""), ("a[1,3]", "a1 and a3 don't meet"), ("a[1-2]", "")]


def test_a_signal_during_a_test_that_fails_is_not_lost() -> None:
    """The test itself may be over, and only being stopped: then its result doesn't say that there was a signal."""

    def unexpected(what: str, reason: str) -> None:
        raise AssertionError(what)

    async def run_group(group: Group) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        return "failed"

    with pytest.raises(Interrupted) as stop:
        asyncio.run(search(["a", "b"], run_group, unexpected))
    assert stop.value.number == signal.SIGTERM


def test_after_its_time_the_search_says_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(culprits, "SIDE_BY_SIDE", 1)
    now_s = [0.0]
    monkeypatch.setattr(culprits, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    told: list[str] = []

    async def run_group(group: Group) -> str:
        now_s[0] = 11.0
        return "failed"

    searching = search(["a", "b"], run_group, lambda what, reason: told.append(what), deadline=10.0)
    verdict = asyncio.run(searching)
    assert (verdict, told) == (Verdict(("a",), is_complete=False), ["a alone"])
    assert verdict.lines() == ["a fails alone", "the time for the search is over"]


def test_a_fault_of_this_machine_is_no_verdict() -> None:
    async def run_group(group: Group) -> str:
        raise NoVerdictError("no more threads")

    with pytest.raises(NoVerdictError, match="no more threads"):
        asyncio.run(search(["a", "b"], run_group, lambda what, reason: None))


def test_ctrl_c_between_two_attempts_is_answered_at_once(tmp_path: Path) -> None:
    said: list[str] = []

    class Screen(Console):
        def say(self, text: str, style: Style = Style.TEXT) -> None:
            said.append(text)

    def interrupt(hosts: Sequence[Host], say: Callable[[str], None]) -> Transport:
        os.kill(os.getpid(), signal.SIGINT)
        raise HostsUnreachable([HostFailure(hosts[0].name, HostFailureKind.TIMED_OUT, "no answer")])

    job, hosts = Job(Program(ProgramKind.SCRIPT, "train.py"), nproc=1, cpu=True), [Host("a"), Host("b")]
    with pytest.raises(Interrupted):
        request = RunRequest(job, hosts, interrupt, RunRecord(tmp_path, "r", print), Screen((), None), RunOptions())
        asyncio.run(find_between_attempts(request, hosts))
    assert "launch: stopping the tests" in said
