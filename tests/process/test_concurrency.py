"""What nobody waits for: its failure, and a machine that has no thread left, are told."""

from __future__ import annotations

import asyncio
import os
import queue
from pathlib import Path

import pytest
from concurrency_limits import refuse_threads
from machines.processes import list_pids, read_command, read_namespace
from node_process import wait_until
from test_trust_nodes import THERE, step_of

from launcher.concurrency import start_task, start_thread, start_timer
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.output.lines import STDERR
from launcher.output.terminal import Terminal
from launcher.transports.base import TransportError

DEADLINE_S = 60.0
NO_THREAD = "this machine can't start another thread (can't start new thread)"


def fail() -> None:
    raise OverflowError("it broke")


def test_the_failure_of_a_thread_is_told() -> None:
    told: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    start_thread(fail, "broken", told.put)
    assert isinstance(told.get(timeout=DEADLINE_S), OverflowError)
    start_timer(0.0, fail, told.put)
    assert isinstance(told.get(timeout=DEADLINE_S), OverflowError)


def test_where_no_thread_is_left_a_timer_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch, "timer")
    done: list[str] = []
    start_timer(DEADLINE_S, lambda: done.append("at once"), print)
    assert done == ["at once"]
    refuse_threads(monkeypatch, "mine")
    with pytest.raises(LauncherError) as error:
        start_thread(fail, "mine", print)
    assert error.value.message == NO_THREAD


def test_the_failure_of_a_task_is_told_and_its_end_is_not() -> None:
    async def run() -> list[BaseException]:
        told: list[BaseException] = []

        async def work(*, is_broken: bool) -> None:
            if is_broken:
                fail()

        tasks = [start_task(work(is_broken=is_broken), told.append) for is_broken in (False, True)]
        cancelled = start_task(asyncio.sleep(DEADLINE_S), told.append)
        cancelled.cancel()
        await asyncio.wait([*tasks, cancelled])
        await asyncio.sleep(0)
        return told

    assert [str(error) for error in asyncio.run(run())] == ["it broke"]


def test_a_terminal_that_breaks_holds_up_nobody() -> None:
    read_end, write_end = os.pipe()
    keep = os.dup(STDERR)
    os.dup2(write_end, STDERR)
    try:
        terminal = Terminal(is_terminal=False, patience_s=DEADLINE_S)
        terminal.put(STDERR, "x" * (5 << 20))  # type: ignore[arg-type]  # no bytes: what nobody has foreseen
        for _ in range(2):
            terminal.put(STDERR, b"x" * (5 << 20) + b"\n")
        terminal.close()
    finally:
        os.dup2(keep, STDERR)
        os.close(write_end)
    with os.fdopen(read_end, "rb") as said:
        error = b"""TypeError("memoryview: a bytes-like object is required, not 'str'")"""
        assert said.read().splitlines()[0] == b"launch: printing failed (%s); the run continues" % error


def test_an_srun_that_gets_no_order_is_told(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho SrunPortRange = 70000-70000\n")
    scontrol.chmod(0o700)
    script = f"{THERE} n1 0 kept 3.11\n{THERE} n2 1 kept 3.11"
    with step_of(tmp_path, script) as step, pytest.raises(TransportError) as error:
        step.open(Host("n1"), "true")
    assert error.value.failure.text == "the connection was lost: OverflowError('bind(): port must be 0-65535.')"


def test_an_srun_is_ended_where_no_thread_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuse_threads(monkeypatch, "read srun")
    with pytest.raises(LauncherError), step_of(tmp_path, "while sleep 0.1; do :; done"):
        pass
    processes = read_namespace(os.getpid(), "pid")
    wait_until(lambda: not any(str(tmp_path / "srun") in read_command(pid) for pid in list_pids(processes)))
