"""The ends of ranks, in whatever order the reports of what started them are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc, workers
from launcher.node.processes.ranks import HandoverLog, Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.processes.starter import REPORTS

pytestmark = pytest.mark.linux


class Sent:
    """Keeps what would be sent to the launcher."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []
        self.ooms: list[str | None] = []

    def send(self, kind: str, **fields: Any) -> None:
        if kind == messages.EXIT:
            self.exits.append((fields["local_rank"], fields["code"]))
            self.ooms.append(fields["oom"])

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


def report(folder: Path, **fields: object) -> None:
    (folder / REPORTS).write_text(json.dumps(fields) + "\n")
