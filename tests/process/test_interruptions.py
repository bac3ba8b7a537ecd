"""Ctrl-C at a bad moment: before a node has answered, and when a failure is known already."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from machines.processes import is_alive
from node_process import shell, wait_until
from screen import Screen
from transport_by_host import TransportByHost

from launcher.cli.exec import Execution, execute
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.output.node_output import NodeOutput
from launcher.output.run_folder import create_record
from launcher.runs.attempt import Attempt
from launcher.runs.records import Result
from launcher.runs.run import Run
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.session.session import Session
from launcher.session.settings import Settings
from launcher.session.signals import Interrupted
from launcher.transports.base import Channel, Transport, TransportError
from launcher.transports.bootstrap import MARKER
from launcher.transports.process_channel import LocalTransport

DEADLINE_S = 60.0
WAITS = "echo $$ >{pid}; exec sleep 300"


@dataclass
class QuietChannel:
    """A channel on which nothing but the marker comes until `may_speak`; `breaks`: then the connection is gone."""

    channel: Channel
    may_speak: threading.Event
    breaks: bool
    has_marker: bool = False

    def read(self) -> tuple[int, bytes]:
        if self.has_marker:
            self.may_speak.wait(DEADLINE_S)
            if self.breaks:
                return 0, b""
        stream, data = self.channel.read()
        self.has_marker = self.has_marker or MARKER.encode() in data
        return stream, data

    def write(self, data: bytes) -> None:
        self.channel.write(data)
        if b'"type": "stop"' in data:
            self.may_speak.set()

    def close(self) -> None:
        self.may_speak.set()
        self.channel.close()

    def exit_code(self) -> int | None:
        return None if self.breaks else self.channel.exit_code()


@dataclass
class QuietTransport:
    """This machine, whose first connection is quiet."""

    breaks: bool = False
    name: str = "quiet"
    may_speak: threading.Event = field(default_factory=threading.Event)
    opened: int = 0

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        self.opened += 1
        channel = LocalTransport().open(host, command, timeout_s)
        return channel if self.opened > 1 else QuietChannel(channel, self.may_speak, self.breaks)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()


@dataclass
class ClosedTransport:
    """A way that leads nowhere before it is told to."""

    may_open: threading.Event = field(default_factory=threading.Event)
    was_asked: bool = False
    name: str = "closed"
    channels: list[Channel] = field(default_factory=list)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        self.was_asked = True
        self.may_open.wait(DEADLINE_S)
        self.channels.append(LocalTransport().open(host, command, timeout_s))
        return self.channels[-1]

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()


def make_session(screen: Screen, outputs: Sequence[NodeOutput], **ways: Transport) -> Session:
    settings = Settings("interrupted", {}, [sys.executable], timeouts=Timeouts(DEADLINE_S, DEADLINE_S, 1))
    hosts = [Host(name) for name in ways]
    return Session(hosts, TransportByHost(ways), outputs, settings, say=screen.say, progress=lambda text: None)


async def interrupt_when(is_true: Callable[[], object], told: Path | None = None) -> None:
    """Press Ctrl-C once something is true; told: a file that is there after that."""
    while not is_true():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    if told is not None:
        told.touch()


def has_text(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


class Refusing:
    """A host that nobody can reach."""

    name = "refusing"

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        raise TransportError(HostFailure(host.name, HostFailureKind.REFUSED, "nothing listens"))

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()


def test_a_question_at_ctrl_c_names_who_has_failed_and_hangs_up() -> None:
    screen, quiet = Screen(), QuietTransport()

    async def ask() -> None:
        session = make_session(screen, [NodeOutput(name, None, None) for name in "ab"], a=quiet, b=Refusing())
        pressing = asyncio.create_task(interrupt_when(lambda: quiet.opened and session.states[1].failure))
        async with session.asking():
            session.open(facts=True)
            await session.pump(lambda: False)
        await pressing

    with pytest.raises(Interrupted):
        asyncio.run(ask())
    assert "  b: nothing listens" in screen.words
    assert quiet.may_speak.wait(DEADLINE_S), "it is still connected"


# ---- launch exec ----------------------------------------------------------------------------------------------------


def interrupt_exec(folder: Path, when: Callable[[], object] | None = None, **ways: Transport) -> Execution:
    """Run a command that waits, and press Ctrl-C once it runs."""
    pid = folder / "pid"

    async def run() -> Execution:
        session = make_session(Screen(), [NodeOutput(name, None, None) for name in ways], **ways)
        pressing = asyncio.create_task(interrupt_when(when or (lambda: has_text(pid))))
        try:
            return await asyncio.wait_for(execute(session, shell(WAITS.format(pid=pid)), None, print), DEADLINE_S)
        finally:
            pressing.cancel()

    done = asyncio.run(run())
    if has_text(pid):
        wait_until(lambda: not is_alive(int(pid.read_text())))
    return done


def test_a_command_that_runs_before_its_node_has_answered_is_in_the_census(tmp_path: Path) -> None:
    done = interrupt_exec(tmp_path, n1=QuietTransport())
    assert (done.exit_code, dict(done.census.left), dict(done.census.unasked)) == (130, {"n1": []}, {})


def test_a_node_that_is_lost_before_its_answer_is_asked_again(tmp_path: Path) -> None:
    way = QuietTransport(breaks=True)
    done = interrupt_exec(tmp_path, n1=way)
    assert (way.opened, dict(done.census.left), dict(done.census.unasked)) == (2, {"n1": []}, {})


def test_a_host_that_is_reached_too_late_gets_no_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    way = ClosedTransport()
    done = interrupt_exec(tmp_path, lambda: way.was_asked, n1=way)
    assert capsys.readouterr().out.splitlines()[-1] == "launch: stopped, nothing was started"
    assert (dict(done.census.left), dict(done.census.unasked)) == ({}, {})
    way.may_open.set()
    wait_until(lambda: way.channels and way.channels[0].exit_code() is not None)
    assert not (tmp_path / "pid").exists()


# ---- a run ----------------------------------------------------------------------------------------------------------


def interrupt_run(
    folder: Path, script: str, when: Callable[[Session], object], *, restarts: int = 0, kind: type[Run] = Run,
    stop_timeout_s: float = 1, **ways: Transport,
) -> tuple[Result, list[str], Path]:  # fmt: skip
    """Run, and press Ctrl-C once the latest attempt has got so far; the file `pressed` is there after that."""
    screen = Screen()
    sessions: list[Session] = []

    class WatchedRun(kind):  # type: ignore[misc,valid-type]
        def _open_attempt(self) -> Attempt:
            attempt = super()._open_attempt()
            sessions.append(attempt.session)
            return attempt

    record = create_record(folder / "logs", datetime.now(), lambda path, error: None)
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", script))
    job = Job(program, nproc=2, cpu=True, timeouts=Timeouts(DEADLINE_S, DEADLINE_S, stop_timeout_s))

    async def run() -> Result:
        hosts, options = [Host(name) for name in ways], RunOptions(with_checks=False, restarts=restarts)
        request = RunRequest(job, hosts, lambda hosts, say: TransportByHost(ways), record, screen, options)
        run = WatchedRun(request)
        pressing = asyncio.create_task(interrupt_when(lambda: sessions and when(sessions[-1]), folder / "pressed"))
        try:
            return await asyncio.wait_for(run.execute(), DEADLINE_S)
        finally:
            pressing.cancel()

    return asyncio.run(run()), screen.words, record.folder


CONSEQUENCE = "torch.distributed.DistBackendError: Connection closed by peer"


def test_a_failure_that_is_known_survives_ctrl_c(tmp_path: Path) -> None:
    """It looks like the consequence of another, so the run waits for that one for a moment."""
    script = f'[ $RANK = 1 ] || exec sleep 300; echo "{CONSEQUENCE}" >&2; exit 7'
    result, words, folder = interrupt_run(
        tmp_path, script, lambda session: session.states[0].exits, n1=LocalTransport()
    )
    assert (result.exit_code, result.interrupted_by) == (7, signal.SIGINT)
    assert result.cause is not None and result.cause.failure.rank == 1
    assert words[-1] == "launch: 0 processes left on 1 host, exit code 7"
    assert any(line.startswith("launch: FAILED after") for line in words)
    recorded = json.loads((folder / "run.json").read_text())["result"]
    assert (recorded["cause"]["rank"], recorded["interrupted_by"]) == (1, signal.SIGINT)


def test_ctrl_c_again_and_again_as_a_failed_run_ends(tmp_path: Path) -> None:
    """From when the result is known until the process is gone."""
    again = "(while kill -INT $PPID; do sleep 0.005; done) >/dev/null 2>&1 &"
    words = ["singlenode", "--nproc", "1", "--cpu", "--no-python", "--notify", again, "sh", "-c", "exit 7"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.partition(" (")[0]) == (7, "launch: 0 processes left on 1 host, exit code 7")


@pytest.mark.parametrize("ending", ["ctrl-c", "well"])
def test_files_of_the_flight_recorder_are_checked_however_the_run_ends(tmp_path: Path, ending: str) -> None:
    """A hang that Ctrl-C ends is when people run torchfrtrace."""
    dump = r'printf "\200\002$([ $RANK = 0 ] || echo c)}." >"$LAUNCH_FILES/nccl_trace_rank_$RANK"'
    script = f"{dump}; >{tmp_path}/$RANK; {'exec sleep 300' if ending == 'ctrl-c' else 'exit 0'}"

    def is_time(session: Session) -> bool:
        return ending == "ctrl-c" and all((tmp_path / rank).exists() for rank in "01")

    result, words, folder = interrupt_run(tmp_path, script, is_time, n1=LocalTransport())
    assert result.exit_code == (130 if ending == "ctrl-c" else 0)
    files = folder / "files"
    assert words[-3:-1] == [
        f"  NCCL's flight recorder of 2 ranks: {files}",
        f"    don't run torchfrtrace on it: 1 file can't be trusted, such as {files}/node_0/nccl_trace_rank_1 "
        "(holds more than plain data at byte 2 and could run code here)",
    ]
    assert words[-1].startswith("launch: stopped by you after" if ending == "ctrl-c" else "launch: finished in")


def test_a_host_that_is_known_to_fail_is_named_at_ctrl_c(tmp_path: Path) -> None:
    class NoWay(LocalTransport):
        def open(self, host: Host, command: str, timeout_s: float) -> Channel:  # type: ignore[override]
            raise OSError("no route")

    ways: dict[str, Transport] = {"n1": NoWay(), "n2": ClosedTransport()}
    words = interrupt_run(tmp_path, "true", lambda session: session.states[0].failure is not None, **ways)[1]
    assert words[-1] == "launch: stopped by you, nothing was started"
    assert "launch: 1 host can't be used:" in words
    assert any(line.startswith("  n1: ") and "no route" in line for line in words)


def test_ctrl_c_while_a_failed_attempt_stops_means_no_restart(tmp_path: Path) -> None:
    fails = f"until [ -e {tmp_path}/ready ]; do sleep 0.01; done; exit 7"
    saves = f"trap '' TERM; >{tmp_path}/ready; until [ -e {tmp_path}/pressed ]; do sleep 0.01; done"
    result, words, folder = interrupt_run(
        tmp_path, f"[ $RANK = 0 ] || {{ {fails}; }}; {saves}", lambda session: session.states[0].exits,
        restarts=9, stop_timeout_s=DEADLINE_S, n1=LocalTransport(),
    )  # fmt: skip
    assert result.exit_code == 7
    assert words[-1] == "launch: 0 processes left on 1 host, exit code 7"
    assert len(json.loads((folder / "run.json").read_text())["attempts"]) == 1


def test_ctrl_c_between_two_attempts_ends_the_run(tmp_path: Path) -> None:
    """The second failure is another one, and is followed by a pause of 5 s."""
    script = f"[ $RANK = 0 ] || exec sleep 300; [ -e {tmp_path}/again ] && exit 8; >{tmp_path}/again; exit 7"

    def is_pause(session: Session) -> bool:
        exits = session.states[0].exits.values()
        return session.states[0].census is not None and any(exit.fields["code"] == 8 for exit in exits)

    result, words, folder = interrupt_run(tmp_path, script, is_pause, restarts=9, n1=LocalTransport())
    assert result.exit_code in (8, 130)
    recorded = json.loads((folder / "run.json").read_text())
    assert recorded["result"]["exit_code"] == result.exit_code
    assert words[-1].startswith("launch: stopped by you after" if result.exit_code == 130 else "launch: 0 processes")
    assert not any("restart 2" in line for line in words)


def test_ctrl_c_just_before_a_restart_without_a_pause(tmp_path: Path) -> None:
    """While the run prints and writes what follows: no session is there that would hear it."""

    class PressedRun(Run):
        def _replace_hosts(self, *args: Any) -> None:
            super()._replace_hosts(*args)
            os.kill(os.getpid(), signal.SIGINT)

    result, words, folder = interrupt_run(
        tmp_path, "exit 7", lambda session: False, kind=PressedRun, restarts=9, n1=LocalTransport()
    )
    assert result.exit_code == 130
    assert words[-1].startswith("launch: stopped by you after")
    assert len(json.loads((folder / "run.json").read_text())["attempts"]) == 1
