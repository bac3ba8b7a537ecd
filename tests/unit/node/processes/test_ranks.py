"""The ends of ranks, in whatever order the reports of what started them are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc
from launcher.node.processes.handover_log import HandoverLog
from launcher.node.processes.ranks import Ranks
from launcher.node.processes.run_processes import RunProcesses

pytestmark = pytest.mark.linux


class Sent:
    """Keeps what would be sent to the launcher."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []

    def send(self, kind: str, **fields: Any) -> None:
        if kind == messages.EXIT:
            self.exits.append((fields["local_rank"], fields["code"]))

    def drain(self, wanted: object = None) -> None:
        """Nothing of the ranks is in a pipe."""


def test_an_end_that_is_read_before_its_start_is_not_lost() -> None:
    """While one rank is taken in, which has ended already, more reports are read: of one that comes after it."""
    stats = []
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", ""])
        stats.append(proc.read_stat(child.pid))
        child.wait()
    pids = [proc.parse_stat(stat).pid for stat in stats if stat is not None]
    reports, starter = os.pipe()
    log, guardian = os.pipe()
    sent, loop = Sent(), Loop()
    owned = RunProcesses(None, [])
    ranks = Ranks(loop, sent, HandoverLog(guardian), owned, lambda: None)  # type: ignore[arg-type]
    ranks._tells_exits, ranks._expected = True, 2
    ranks._watch_starter(reports)

    def write(**report: object) -> None:
        os.write(starter, json.dumps(report).encode() + b"\n")

    def end_all(local_rank: int, pid: int) -> None:
        if local_rank == 0:
            for number, ended in enumerate(pids):
                write(pid=ended, status=(3 + number) << 8, ended_at=0.0)

    ranks.bind = end_all
    for rank, stat in enumerate(stats):
        write(rank=rank, stat=stat)
    loop.run_once()
    assert sorted(sent.exits) == [(0, 3), (1, 4)]
    for fd in (starter, log, guardian):
        os.close(fd)
