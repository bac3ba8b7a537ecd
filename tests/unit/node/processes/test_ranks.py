"""The ends of ranks, in whatever order the reports of what started them are read."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines.patience import NEVER_S

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc, workers
from launcher.node.processes.ranks import HandoverLog, Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.processes.starter import REPORTS

pytestmark = pytest.mark.linux

F_SETPIPE_SZ = 1031


class Sent:
    """Keeps what would be sent to the launcher."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []
        self.ooms: list[str | None] = []
        self.starters_ends: list[dict[str, Any] | None] = []

    def send(self, kind: str, **fields: Any) -> None:
        if kind == messages.EXIT:
            self.exits.append((fields["local_rank"], fields["code"]))
            self.ooms.append(fields["oom"])
        elif kind == messages.FAILED:
            self.starters_ends.append(fields.get("supervisor"))

    def watch(self, fd: int, local_rank: int, stream: int) -> None:
        """Nothing of the ranks is in a pipe."""

    def drain(self, wanted: object = None) -> None:
        """Nothing is there."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Ranks, Sent, Loop]]:
    """Yield what watches ranks whose pipes are in a directory of the test."""
    sent, loop = Sent(), Loop()
    log, guardian = os.pipe()
    yield Ranks(loop, sent, HandoverLog(guardian), RunProcesses(None, []), lambda: None), sent, loop  # type: ignore[arg-type]
    for fd in (log, guardian):
        os.close(fd)


def test_an_end_that_is_known_before_its_start_is_not_lost(tmp_path: Path, scene: tuple[Ranks, Sent, Loop]) -> None:
    """The starter was killed, and this process reaps its ranks before it reads that they have started."""
    ranks, sent, _ = scene
    ranks.expect(str(tmp_path), range(2))
    codes = (3, 4, 0)
    *children, starter = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({code})"]) for code in codes]
    ranks.set_starter(workers.Child(starter.pid))
    for rank, child in enumerate(children):
        report(tmp_path, rank=rank, stat=proc.read_stat(child.pid))
    for child in (*children, starter):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ranks.reap()
    assert sorted(sent.exits) == [(0, 3), (1, 4)]


def test_one_kill_for_lack_of_memory_explains_one_rank(tmp_path: Path, scene: tuple[Ranks, Sent, Loop]) -> None:
    """Unless the kernel has counted it before the rank began, among numbers that only look like this one."""
    ranks, sent, loop = scene
    ranks.vmstat = str(tmp_path / "vmstat")
    stat = proc.read_stat(os.getpid())
    ranks.expect(str(tmp_path), range(3))
    for rank, kills in enumerate((7, 8, 8)):
        Path(ranks.vmstat).write_text(f"oom 9\nlow 0\noom_kill {kills}\noom_group_kill 5\n")
        report(tmp_path, rank=rank, stat=f"{100 + rank} {stat.partition(' ')[2]}" if stat else "")
        report(tmp_path, pid=100 + rank, status=9, ended_at=0.0)
        loop.run_once()
    assert sent.ooms == [None, "probable", None]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_kill_for_lack_of_memory_explains_the_end_of_what_starts_the_ranks(
    tmp_path: Path, scene: tuple[Ranks, Sent, Loop], *, is_killed: bool
) -> None:
    """If it exits, its own words do."""
    ranks, sent, loop = scene
    ranks.vmstat = str(tmp_path / "vmstat")
    starter = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    ranks.set_starter(workers.Child(starter.pid))
    ranks.expect(str(tmp_path), [0])
    Path(ranks.vmstat).write_text("oom_kill 7\n")
    report(tmp_path, rank=0, stat=proc.read_stat(os.getpid()))
    loop.run_once()
    Path(ranks.vmstat).write_text("oom_kill 8\n")
    assert starter.stdin is not None
    if is_killed:
        starter.kill()
    starter.stdin.close()
    os.waitid(os.P_PID, starter.pid, os.WEXITED | os.WNOWAIT)
    ranks.reap()
    assert sent.starters_ends == [{"code": None, "signal": 9, "oom": "probable"} if is_killed else None]


def test_a_process_id_that_is_used_again_ends_no_rank(tmp_path: Path, scene: tuple[Ranks, Sent, Loop]) -> None:
    """Those of an orphan that ended before, of a child that is no rank, and of a rank that has ended."""
    ranks, sent, loop = scene
    orphan, other = subprocess.Popen(["true"]), subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    ranks.await_exit(workers.Child(other.pid), lambda status: None)
    os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
    ranks.reap()
    ranks.expect(str(tmp_path), range(4))
    assert other.stdin is not None
    other.stdin.close()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    ranks.reap()
    stat = (proc.read_stat(os.getpid()) or "").partition(" ")[2]
    for rank, pid in enumerate((orphan.pid, other.pid, 100)):
        report(tmp_path, rank=rank, stat=f"{pid} {stat}")
    report(tmp_path, pid=100, status=0, ended_at=0.0)
    report(tmp_path, rank=3, stat=f"100 {stat}")
    loop.run_once()
    assert sent.exits == [(2, 0)]
    report(tmp_path, pid=100, status=3 << 8, ended_at=0.0)
    loop.run_once()
    assert sent.exits == [(2, 0), (3, 3)]


@pytest.fixture
def small_pipe(tmp_path: Path) -> Iterator[int]:
    """Yield the reading end of a pipe for reports that has one page, as a user has whose pipe quota is used up."""
    fd = workers.make_pipe(str(tmp_path), REPORTS, os.O_RDWR)
    fcntl.fcntl(fd, F_SETPIPE_SZ, 4096)
    yield fd
    os.close(fd)


REPORT_ALL = """
import sys
from launcher.node.processes.starter import Starter
starter = Starter([], sys.argv[1], 0, 0)
for number in range(500):
    starter.report(number=number)
"""


def start_reports(folder: Path, fd: int) -> subprocess.Popen[bytes]:
    """Return a process that reports more than the pipe takes, once it is full; its stdin ends with the keepers."""
    process = subprocess.Popen([sys.executable, "-c", REPORT_ALL, str(folder)], stdin=subprocess.PIPE)
    while select.select([], [fd], [], 0)[1]:
        assert process.poll() is None, "it dropped reports, or wrote none"
        time.sleep(0.01)
    return process


def test_no_report_is_lost_while_the_pipe_is_full(tmp_path: Path, small_pipe: int) -> None:
    process, data = start_reports(tmp_path, small_pipe), b""
    while process.poll() is None or select.select([small_pipe], [], [], 0)[0]:
        if select.select([small_pipe], [], [], 0.01)[0]:
            data += os.read(small_pipe, 100)
    assert [json.loads(line)["number"] for line in data.splitlines()] == list(range(500))


@pytest.mark.parametrize("is_held", [False, True])
def test_what_waits_for_the_pipe_notices_that_nobody_reads_it(
    tmp_path: Path, small_pipe: int, *, is_held: bool
) -> None:
    """Also if a child of the supervisor still holds it open; then the keepers' end is a sign."""
    process = start_reports(tmp_path, small_pipe)
    assert process.stdin is not None
    if is_held:
        process.stdin.close()
    else:
        with Path(os.devnull).open() as null:
            os.dup2(null.fileno(), small_pipe)
    assert process.wait(NEVER_S) == 0
    process.stdin.close()


def report(folder: Path, **fields: object) -> None:
    (folder / REPORTS).write_text(json.dumps(fields) + "\n")
