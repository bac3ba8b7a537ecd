"""Runs that another process controls: list, watch, read, wait for and stop them; and one that outlives its terminal."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

import pytest
from machines.launches import PROGRAM, hurried, run_launch, start_launch
from machines.patience import DEADLINE_S
from machines.warm import WarmProcess
from node_process import wait_until

from launcher.runs.run_list import RemoteRun, RunList, Way
from launcher.runs.run_rows import read_row

RUN = ("singlenode", "--nproc", "2", "--cpu", "--no-check", "--stop-timeout", "0.5", "--no-python", "sh", "-c")
# Each rank writes bytes of all kinds, and then a line for as long as there is no file `go`.
WRITES = r"""
    printf 'rank %s\n\303\251 \377\r50%%\r100%%\nhalf' $RANK; printf 'error %s\n\r' $RANK >&2
    while [ ! -e go ]; do sleep 0.1; done; printf ' and half\n'; exit ${CODE:-0}
"""

Process = subprocess.Popen[bytes] | WarmProcess


class Machine:
    """One user's runs: a folder, and a state directory of its own."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.folder = folder
        self._ends = ends

    def start(self, script: str = WRITES, *, words: tuple[str, ...] = RUN, inherits: bool = False) -> Process:
        """Start a run in the background, and return once its ranks have written; inherits: signals of this process."""
        before = self._latest_log()
        with Path(os.devnull).open("wb") as nowhere:
            process: Process = (
                subprocess.Popen([PROGRAM, *words, script], cwd=self.folder, stdout=nowhere, stderr=nowhere)
                if inherits
                else start_launch(*words, script, cwd=self.folder, stdout=nowhere, stderr=nowhere)
            )
        self._ends.callback(self._end, process)
        wait_until(lambda: self._latest_log() != before and self._latest_log().read_bytes().count(b"] rank ") == 2)
        return process

    def begin(self, *words: str) -> tuple[WarmProcess, IO[str]]:
        """Start a command; return it, and what it says on stderr."""
        read, write = os.pipe()
        with os.fdopen(write, "wb") as end, Path(os.devnull).open("wb") as nowhere:
            process = start_launch(*words, cwd=self.folder, stdout=nowhere, stderr=end)
        return process, self._ends.enter_context(os.fdopen(read))

    def _latest_log(self) -> Path:
        """Return the log of the newest run, or /dev/null: to poll `launch logs` would cost a start each time."""
        log = self.folder / "logs" / "latest" / "node_0.log"
        return log.resolve() if log.exists() else Path(os.devnull)

    def call(self, *words: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return run_launch(*words, cwd=self.folder, code=code)

    @property
    def runs(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = json.loads(self.call("ps", "--json", code=0).stdout)
        return rows

    def go(self) -> None:
        (self.folder / "go").touch()

    def _end(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as ends:
        yield Machine(tmp_path, ends)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_run_of_another_terminal(machine: Machine) -> None:
    assert machine.call("ps", code=0).stderr == "launch: no run was started on this machine yet\n"
    running = machine.start()
    (row,) = machine.runs
    assert (row["state"], row["exit_code"], row["pid"]) == ("running", None, running.pid)
    doing, counts = row["doing"], [row[f"restarts{which}"] for which in ("", "_without_progress", "_left")]
    assert isinstance(doing, dict) and doing["what"] == "running" and doing["for_s"] <= DEADLINE_S
    assert counts == [0, 0, 0]
    (place,) = RunList.of_user(os.environ).base.glob("*/controller.json")
    assert place.stat().st_mode & 0o777 == 0o600
    table = machine.call("ps", code=0).stdout
    assert re.search(r"running +\d+\.?\d* s +here +1 x 2 ", table), table
    assert machine.call("logs", str(row["run"])[:12], "--since", "1h", code=0).stdout.count("] rank ") == 2
    said = machine.call("logs", "--rank", "9", "--attempt", "0", code=1).stderr
    assert said == f"launch: run {row['run']} has no lines of --rank 9 --attempt 0\n"

    watching = subprocess.Popen([PROGRAM, "attach"], cwd=machine.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None and watching.stderr is not None
    title = f"run {row['run']}, which {socket.gethostname()} controls; running; Ctrl-C leaves it running"
    assert watching.stderr.readline().decode() == f"launch: watching {title}\n"
    screen, terminal = pty.openpty()
    waiting = subprocess.Popen([PROGRAM, "wait"], cwd=machine.folder, stderr=terminal)
    os.close(terminal)
    shown = os.fdopen(screen, "rb", buffering=0)
    assert shown.readline().decode() == f"launch: waiting for run {row['run']}, which is running\r\n"
    following = subprocess.Popen(
        [PROGRAM, "logs", "-f", "--rank", "1"], cwd=machine.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    machine.go()
    out, err = following.communicate(timeout=DEADLINE_S)
    written = b"rank 1\n\xc3\xa9 \xff\r50%\r100%\nhalf and half\n"
    assert (digest(out), digest(err)) == (digest(written), digest(b"error 1\n\r")), "logs are what a rank wrote"
    assert (waiting.wait(DEADLINE_S), watching.wait(DEADLINE_S), running.wait(DEADLINE_S)) == (0, 0, 0)
    assert re.search(rb"\[\w+:1\] half and half", watching.stdout.read())
    assert shown.readline().startswith(b"launch: finished in ")
    shown.close()
    (row,) = machine.runs
    assert (row["state"], row["exit_code"], row["pid"]) == ("finished", 0, None)


def test_a_run_that_fails(machine: Machine) -> None:
    running = machine.start(f"CODE=7; {WRITES}")
    machine.go()
    waiting = machine.call("wait", code=7)
    assert running.wait(DEADLINE_S) == 7
    first, *_, last = waiting.stderr.splitlines()
    assert first.startswith("launch: FAILED after ")
    run = machine.runs[0]["run"]
    assert last == f"launch: 0 processes left on 1 host, exit code 7 (launch report {run})"
    assert re.search(r"failed \(7\) +.* \w+ rank ([01]): exit code 7: error \1", machine.call("ps", code=0).stdout)
    shown = machine.call("attach", code=7).stderr.splitlines()
    assert re.fullmatch(r"launch: run \S+, which \S+ controlled, has ended; its last lines:", shown[0])
    assert shown[-1] == last


def test_stop_a_run_that_a_script_has_started_with_an_ampersand(machine: Machine) -> None:
    """It ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        running = machine.start(inherits=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert machine.call("stop", code=0).stderr.startswith("launch: stopped by SIGTERM after ")
    (row,) = machine.runs
    assert (running.wait(DEADLINE_S), row["state"]) == (143, "stopped")


def test_stop_a_run_whose_server_waits_for_its_signals(machine: Machine) -> None:
    """It has blocked them, as sigwait needs it, and what it starts inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        running = machine.start("grep SigBlk /proc/self/status; " + WRITES, inherits=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert machine.call("stop", code=0).stderr.startswith("launch: stopped by you after ")
    assert running.wait(DEADLINE_S) == 130
    assert machine.call("logs", code=0).stdout.count("SigBlk:\t0000000000000000\n") == 2


def test_stop_a_run_whose_launch_is_suspended(machine: Machine) -> None:
    running = machine.start()
    run = machine.runs[0]["run"]
    running.send_signal(signal.SIGSTOP)
    words = [*hurried({"launcher.cli.stop._UNHEARD_S": 0.5}), "stop"]
    stopping = subprocess.Popen(words, cwd=machine.folder, stderr=subprocess.PIPE, text=True)
    said = stopping.stderr
    assert said is not None
    try:
        first, fix = said.readline(), said.readline()
    finally:
        running.send_signal(signal.SIGCONT)
    pid = running.pid
    where = f"process {pid} on {socket.gethostname()}, its launch, doesn't respond"
    assert first == f"launch: run {run} doesn't stop: {where}\n"
    assert (
        fix == f"  fix: kill -CONT {pid} there if it is suspended; or kill -KILL {pid}, and its hosts end the ranks\n"
    )
    assert "stopped by you after " in said.read()
    assert (stopping.wait(DEADLINE_S), running.wait(DEADLINE_S)) == (0, 130)


def test_a_name_that_may_mean_two_runs_elsewhere(machine: Machine) -> None:
    """Their hosts are asked; what they don't say isn't guessed. One that is known to have ended isn't meant."""
    runs = RunList(Path(os.environ["XDG_STATE_HOME"]) / "launch" / "runs")
    for number in range(2):
        run_id = runs.take_id(datetime(2026, 11, 20, 9, 12, 33 + number), "token")
        runs.add(RemoteRun(run_id, Way("127.0.0.1", port=1), "base", 1.8e9 + number))
    done = machine.call("stop", "base", code=2)
    assert done.stderr.splitlines() == [
        "launch: 'base' means 2 runs: 20261120-091234, 20261120-091233",
        "  fix: name one by its id, as launch ps shows it",
    ]
    row = {
        **machine.runs[0], "run": "20261120-091234", "state": "finished", "exit_code": 0, "last_line": "",
    }  # fmt: skip
    ended = read_row(row)
    assert ended is not None
    runs.note_seen(RemoteRun("20261120-091234", Way("127.0.0.1")), ended)
    said = machine.call("stop", "base", code=69).stderr.splitlines()
    assert said[0].startswith("launch: 127.0.0.1: ")
    assert said[-2].startswith("launch: only 127.0.0.1 knows whether run 20261120-091233 continues; it was started ")
    assert said[-1] == (
        "  fix: try again when 127.0.0.1 responds; if it has died, all hosts stop the run after --silence"
    )
    assert machine.runs[1]["last_line"] == "doesn't answer"


def test_stop(machine: Machine) -> None:
    """What follows the end is told with it."""
    writes = WRITES.replace("! -e go", "! -e never")
    running = machine.start(f"trap '' TERM; {writes}", words=(RUN[0], "--notify", "exit 3", *RUN[1:]))
    said = machine.call("stop", code=0).stderr.splitlines()
    assert said[0].startswith("launch: stopped by you after ")
    assert said[-1] == "launch: --notify failed (exit code 3)"
    (row,) = machine.runs
    assert (running.wait(DEADLINE_S), row["state"]) == (130, "stopped")
    assert machine.call("wait", code=130).stderr.splitlines() == said
    done = machine.call("stop", code=2)
    assert done.stderr.splitlines()[0] == "launch: no run is running on this machine"
    again = machine.call("stop", str(row["run"]), code=0)  # as if it had been typed at the same time
    assert again.stderr.startswith(f"launch: run {row['run']} was stopped before\nlaunch: stopped by you after ")


def test_several_runs(machine: Machine) -> None:
    """`launch stop` names those that may be meant, and `launch wait` waits for all that are named."""
    first = machine.start(f"CODE=7; {WRITES}", words=(RUN[0], "--name", "first", *RUN[1:]))
    second = machine.start(words=(RUN[0], "--name", "second", *RUN[1:]))
    ids = {str(row["name"]): str(row["run"]) for row in machine.runs}
    named = f"{ids['second']} (second), {ids['first']} (first)"
    assert machine.call("stop", code=2).stderr.splitlines() == [
        f"launch: 2 runs may be running: {named}",
        "  fix: name one of them",
    ]
    assert machine.call("ps", "--forget", "first", code=2).stderr.splitlines() == [
        f"launch: run {ids['first']} is running",
        f"  fix: launch stop {ids['first']}",
    ]
    waiting, words = machine.begin("wait", "second", "first")
    machine.go()
    assert (first.wait(DEADLINE_S), second.wait(DEADLINE_S)) == (7, 0)
    said = [line for line in words.read().splitlines() if line.startswith("launch: ")]
    ends = [line for line in said if line.startswith(("launch: finished in ", "launch: FAILED after "))]
    assert [line.split()[1] for line in ends] == ["finished", "FAILED"]
    assert waiting.wait(DEADLINE_S) == 7
    machine.call("ps", "--forget", "first", code=0)
    lines = machine.call("ps", code=0).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", ids["second"]], "in a pipe without a rule"
    assert all(line == line.rstrip() for line in lines), "nor filled up"
    assert (machine.folder / "logs" / ids["first"]).is_dir()


def test_stop_is_typed_twice(machine: Machine) -> None:
    """The ranks may still save: a second Ctrl-C would kill them."""
    words = (*RUN[:5], "--stop-timeout", f"{DEADLINE_S}", *RUN[7:])
    saves = "trap 'touch saving; while [ ! -e go ]; do sleep 0.1; done; echo saved; exit 0' TERM; "
    running = machine.start(saves + WRITES.replace("! -e go", "! -e never"), words=words)

    first, said_first = machine.begin("stop")
    wait_until((machine.folder / "saving").exists)
    second, said_second = machine.begin("stop")
    assert "is being stopped already" in said_second.readline()
    time.sleep(0.5)  # it would have sent its signal
    machine.go()
    assert "is being stopped already" not in said_first.read()
    assert [each.wait(DEADLINE_S) for each in (running, first, second)] == [130, 0, 0]
    assert machine.call("logs").stdout.count("halfsaved\n") == 2


def test_stop_now(machine: Machine) -> None:
    """A rank that ignores SIGTERM gets no time to save."""
    words = (*RUN[:5], "--stop-timeout", "600", *RUN[7:])
    running = machine.start(f"trap '' TERM; {WRITES}", words=words)
    assert "killing the ranks of run " in machine.call("stop", "--now", code=0).stderr
    assert running.wait(DEADLINE_S) == 130


def test_a_run_that_outlives_its_terminal(machine: Machine, tmp_path: Path) -> None:
    """The terminal closes, which sends SIGHUP to what is left there; the run continues, and says how it ended."""
    controller, terminal = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    note = "cat; tr '\\0' ' ' </proc/$$/cmdline >argv; echo $LAUNCH_EVENT $LAUNCH_RUN $LAUNCH_EXIT_CODE >notified"
    words = (RUN[0], "--detach", "--notify", "another", "--notify=one more", "--notify", note, *RUN[1:])
    process = subprocess.Popen(
        [*hurried({"launcher.runs.attempt.ALL_RUN_S": 0.5}), *words, f"CODE=3; {WRITES}"],
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    said = b""
    with suppress(OSError):  # everybody has left the terminal
        while data := os.read(controller, 1 << 16):
            said += data
    os.close(controller)
    assert process.wait(DEADLINE_S) == 0
    assert b"continues without this terminal" in said
    assert b"launch attach   watch it" in said
    (row,) = machine.runs
    assert row["state"] == "running"
    machine.go()
    assert machine.call("wait", code=3).stderr.startswith("launch: FAILED after ")
    wait_until((tmp_path / "notified").exists)
    assert (tmp_path / "notified").read_text() == f"end {row['run']} 3\n"
    assert "LAUNCH_EVENT" not in (tmp_path / "argv").read_text()  # which every user can read
    assert (
        json.loads((tmp_path / "logs" / "latest" / "run.json").read_text())["command"].count(
            " --notify '***' '--notify=***' --notify '***' "
        )
        == 1
    )


def test_attach_shows_hosts_that_come_later(machine: Machine, tmp_path: Path) -> None:
    """On a terminal, where each host has a color: a spare is none of the hosts at the start."""
    running = machine.start()
    controller, terminal = pty.openpty()
    words = [PROGRAM, "attach"]
    watching = subprocess.Popen(words, cwd=tmp_path, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    said = b""
    while b"rank 1" not in said:
        said += os.read(controller, 1 << 16)
    with (tmp_path / "logs" / "latest" / "node_7.log").open("w") as log:
        log.write("2026-11-20 09:12:33.123 [spare:7] here I am\n")
    while b"here I am" not in said:
        said += os.read(controller, 1 << 16)
    machine.go()
    with suppress(OSError):
        while os.read(controller, 1 << 16):
            pass
    os.close(controller)
    assert (watching.wait(DEADLINE_S), running.wait(DEADLINE_S)) == (0, 0)


def test_a_detached_run_that_fails_at_once_is_told_here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    done = machine.call("singlenode", "--detach", "--restarts", "1", *RUN[1:], "exit 9", code=9)
    assert "launch: a restart after you log out can't use the SSH agent of this login; " in done.stderr
    assert "launch: 0 processes left on 1 host, exit code 9 (launch report " in done.stderr
    assert machine.runs[0]["state"] == "failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_logs_are_not_copied_where_a_stranger_waits_for_them(machine: Machine, tmp_path: Path) -> None:
    runs = RunList(Path(os.environ["XDG_STATE_HOME"]) / "launch" / "runs")
    run_id = runs.take_id(datetime(2026, 11, 20, 9, 12, 33), "token")
    runs.add(RemoteRun(run_id, Way("127.0.0.1", port=1), None, 1.8e9))
    (tmp_path / "logs").mkdir()
    os.chown(tmp_path / "logs", 54321, -1)
    tmp_path.chmod(0o1777)
    text = "launch: logs belongs to uid 54321 and is in a directory that every user can write"
    assert machine.call("fetch", code=2).stderr.splitlines()[0] == text
    machine.call("fetch", "--log-dir", "logs", code=69)
