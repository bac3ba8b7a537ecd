"""A node that lies costs its own place in a run, and nothing else: beside it runs a real one, of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from lying_node import CENSUS, HOSTILE, Lie, LyingTransport, Piece
from machines.patience import DEADLINE_S, NEVER_S, slowed
from machines.processes import is_alive
from node_process import wait_until
from screen import Screen
from transport_by_host import TransportByHost

from launcher.cli.exec import Execution, execute
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.node import messages
from launcher.node.messages import encode
from launcher.output.node_output import NodeOutput
from launcher.output.run_folder import create_record
from launcher.runs.records import Result
from launcher.runs.run import Run
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.session.session import Session
from launcher.session.settings import Settings
from launcher.transports.base import STDERR
from launcher.transports.process_channel import LocalTransport
from launcher.transports.srun import SrunStep, StepHub

MOST_KIB = 64 << 10  # more than before, for a liar that sends without end


def play(lie: Lie, folder: Path) -> list[str]:
    """Run on an honest node and on one that lies; return the words, and see that the honest one is left clean."""
    screen = Screen()
    pids = folder / "pids"
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", f"echo $$ >>{pids}; exec sleep 300"))
    job = Job(program, nproc=2, cpu=True, timeouts=Timeouts(DEADLINE_S, NEVER_S, 1))
    record = create_record(folder / "logs", datetime.now(), lambda path, error: None)
    hosts = [Host("good"), Host("liar")]
    transport = TransportByHost({"good": LocalTransport(), "liar": LyingTransport(lie)})

    async def execute() -> Result:
        options = RunOptions(with_checks=False)
        run = Run(RunRequest(job, hosts, lambda hosts, say: transport, record, screen, options))
        return await asyncio.wait_for(run.execute(), DEADLINE_S)

    try:
        result = asyncio.run(execute())
    except LauncherError as error:
        screen.say(str(error))
    else:
        assert result.exit_code == 69
        assert screen.words[-1] == "launch: 0 processes left on 2 hosts, exit code 69"
    ranks = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    wait_until(lambda: not any(map(is_alive, ranks)))
    assert not any("\x1b" in line or "\n" in line for line in screen.words)
    return screen.words


def after(kind: str, *more: Piece | Iterator[Piece]) -> Lie:
    """Say more than an honest node, after what it says to a message."""
    return lambda order, said, nonce: [*said, *more] if order["type"] == kind else said


def fail_to_prepare(order: dict[str, Any], said: list[Piece], nonce: str) -> list[Piece]:
    return [encode(messages.FAILED, text=HOSTILE)] if order["type"] == messages.PREPARE else said


def be_a_guardian(order: dict[str, Any], said: list[Piece], nonce: str) -> list[Piece]:
    """Say on stderr what only supervisors may, on stdout."""
    file = (STDERR, nonce.encode() + b' {"type":"file","name":"x","local_rank":0,"stream":1}\n')
    return [*said, file] if order["type"] == messages.START else said


LIES = {
    "hostile words": (fail_to_prepare, "liar: boom?[2J?]0;t??launch: 0 processes left on 2 hosts"),
    "a flood of files": (
        after("start", itertools.repeat(encode(messages.FILE, b"x" * (1 << 20), name="x"))),
        "launch: lost liar (it sent an unrequested message: file x), stopping the run on 2 hosts",
    ),
    "a guardian with a file": (
        be_a_guardian,
        "launch: lost liar (it sent an invalid message: not allowed on stderr: 'file'), stopping the run on 2 hosts",
    ),
}


@pytest.mark.parametrize(("lie", "line"), LIES.values(), ids=LIES)
def test_a_node_that_lies_is_named_and_ends_the_run(tmp_path: Path, lie: Lie, line: str) -> None:
    before_kib = resident_kib()
    assert line in play(lie, tmp_path)
    assert resident_kib() - before_kib < MOST_KIB


NO_CODE = encode(messages.EXIT, local_rank=0, age_s=0, was_stopping=False, code=None, signal=None)


def test_a_command_whose_end_is_not_told_is_no_success() -> None:
    async def run() -> Execution:
        lie = LyingTransport(after("start", NO_CODE, CENSUS, None))
        settings = Settings("exec", {}, [sys.executable], timeouts=Timeouts(DEADLINE_S, NEVER_S, 1))
        session = Session([Host("liar")], lie, [NodeOutput("liar", None, None)], settings, say=print, progress=print)
        return await asyncio.wait_for(execute(session, ["true"], None, print), DEADLINE_S)

    done = asyncio.run(run())
    assert (done.exit_code, done.failures) == (1, [])


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 10


THERE = "echo $(echo \"$*\" | grep -o '~launch [0-9a-f]*' | head -1)"


@contextlib.contextmanager
def step_of(folder: Path, script: str) -> Iterator[SrunStep]:
    """Start a step on n1 and n2 whose srun is a script; THERE and `n1 0 kept 3.11` say that a task has started."""
    srun = folder / "srun"
    srun.write_text(f"#!/bin/sh\n{script}\nexec cat >/dev/null\n")
    srun.chmod(0o700)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}"}
    hosts = ["n1", "n2"]
    step = SrunStep(hosts, [], ["python3"], environ, StepHub(hosts, environ, NEVER_S), timeout_s=slowed(0.3))
    try:
        yield step
    finally:
        step.signal(signal.SIGKILL)


def test_a_task_that_says_twice_that_it_is_there_is_not_another(tmp_path: Path) -> None:
    """srun reads nothing before all are there: a command that went out too early would reach nobody."""
    with step_of(tmp_path, f"{THERE} n1 0 kept 3.11\n{THERE} n1 1 kept 3.11") as step:
        assert step.open(Host("n1"), "true") is None
        assert step.present() == ["n1"]


def test_a_task_that_comes_after_its_step_was_given_up_changes_nothing(tmp_path: Path) -> None:
    """Otherwise the agents of this step would dial as those of the next."""
    late = tmp_path / "late"
    script = f"{THERE} n1 0 kept 3.11\nuntil [ -e {late} ]; do sleep 0.01; done\n{THERE} n2 1 kept 3.11\necho read"
    with step_of(tmp_path, script) as step:
        assert step.open(Host("n1"), "true") is None
        late.touch()
        wait_until(lambda: "read" in step.output.lines("n1"))
        assert step.open(Host("n1"), "true") is None
