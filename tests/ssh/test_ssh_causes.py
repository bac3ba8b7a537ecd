"""A rank that fails on one of two SSH hosts: what is said of it, on the screen and in the record."""

from __future__ import annotations

import re

from launching import RANK_FILE, Launch, rank


def test_one_rank_raises_and_the_others_lose_it(launch: Launch) -> None:
    running = launch.start(*rank("lose", "3=fail"))
    running.wait_for_ranks()
    running.go()
    done = running.finish()
    shown = re.findall(r"^\[(.*)\] Traceback", done.stderr, re.MULTILINE)
    assert "node2:3" in shown
    assert len(shown) <= 2  # one of the others may be heard before
    assert done.words[2:] == [
        "launch: node2 rank 3 failed first (exit code 1), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node2 rank 3 (local rank 1) at HH:MM:SS:",
        f'    File "{RANK_FILE}", line {line_of("raise ValueError")}, in main',
        '      raise ValueError(f"rank {RANK} met a NaN")',
        "    ValueError: rank 3 met a NaN",
        "  its last lines:",
        f"    ready 3 pids {running.pid_of(3)}",
        "    one more line",
        f"  {4 - len(shown)} other tracebacks in the logs",
        "  full log: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)",
    ]
    assert sorted(re.findall(r"^\[(.*)\]! Traceback", "\n".join(done.log(0)), re.MULTILINE)) == ["node1:0", "node1:1"]


def line_of(text: str) -> int:
    """Return the number of the first line of rank.py that holds `text`."""
    lines = RANK_FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
