"""The ends of ranks, in whatever order the reports of what started them are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc
from launcher.node.processes.handover_log import HandoverLog
from launcher.node.processes.ranks import Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.processes.starter import REPORTS

pytestmark = pytest.mark.linux


class Sent:
    """Keeps what would be sent to the launcher."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []

    def send(self, kind: str, **fields: Any) -> None:
        if kind == messages.EXIT:
            self.exits.append((fields["local_rank"], fields["code"]))

    def watch(self, fd: int, local_rank: int, stream: int) -> None:
        """Nothing of the ranks is in a pipe."""

    def drain(self, wanted: object = None) -> None:
        """Nothing is there."""


def test_an_end_that_is_known_before_its_start_is_not_lost(tmp_path: Path) -> None:
    """The starter was killed, and this process reaps its ranks before it reads that they have started."""
    sent, loop = Sent(), Loop()
    log, guardian = os.pipe()
    ranks = Ranks(loop, sent, HandoverLog(guardian), RunProcesses(None, []), lambda: None)  # type: ignore[arg-type]
    ranks.expect(str(tmp_path), range(2))
    children = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({code})"]) for code in (3, 4)]
    for rank, child in enumerate(children):
        stat = proc.read_stat(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / REPORTS).write_text(json.dumps({"rank": rank, "stat": stat}) + "\n")
    ranks.reap()
    loop.run_once()
    assert sorted(sent.exits) == [(0, 3), (1, 4)]
    for fd in (log, guardian):
        os.close(fd)
