"""What is measured of one tool: how soon it has connected, reduced and shown lines, and what it costs while idle."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from bench.lab import Lab
from bench.tools import Tool

LINE_HOSTS, LINES = 4, 2_000_000  # of each host
IDLE_HOSTS = 64
SETTLE_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)  # the process exited meanwhile
MOST_MESSAGES = 100  # of the tool itself, next to the lines


def connect(lab: Lab, tool: Tool, hosts: int) -> float:
    """Return the seconds in which `true` has run on that many hosts."""
    assert tool.execute
    return lab.run(tool.execute(lab, lab.names[:hosts], ["true"]), tool.env)


def first_all_reduce(lab: Lab, tool: Tool) -> float:
    """Return the seconds until 2 hosts x 2 ranks have reduced one number."""
    assert tool.train
    with lab.started(tool.train(lab, lab.names[:2], ["reduce"]), tool.env) as running:
        seconds = running.wait_for("first all-reduce done")
        running.finish()
        running.require_success()
    return seconds


def show_lines(lab: Lab, tool: Tool) -> float:
    """Return the seconds in which 8 million lines of 4 hosts were written to a file."""
    assert tool.stream
    argv = tool.stream(lab, lab.names[:LINE_HOSTS], ["seq", "1", str(LINES)])
    with lab.started(argv, tool.env) as running:
        running.finish(600)
        seconds = time.monotonic() - running.began_at
        running.require_success()
        with running.output.open("rb") as file:
            found = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        if not 0 <= found - LINE_HOSTS * LINES <= MOST_MESSAGES:
            raise RuntimeError(f"{found} lines instead of {LINE_HOSTS * LINES}")
    return seconds


def idle(lab: Lab, tool: Tool, seconds: float, hosts: int = IDLE_HOSTS) -> tuple[float, float]:
    """Return the percent of a core, and the MiB, of all that a tool runs here while its hosts print nothing."""
    assert tool.stream
    argv = tool.stream(lab, lab.names[:hosts], ["sh", "-c", "echo ready; exec sleep 36000"])
    with lab.started(argv, tool.env) as running:
        running.wait_for("ready", hosts)
        time.sleep(SETTLE_S)
        before, began_at = cpu_seconds(lab.login.pids()), time.monotonic()
        time.sleep(seconds)
        used, passed_s = cpu_seconds(lab.login.pids()) - before, time.monotonic() - began_at
        return used / passed_s * 100, memory_mib(lab.login.pids())


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds so far of processes, including those of the children that they have waited for."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(*_GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own, waited_for = (int(fields[first]) + int(fields[first + 1]) for first in (11, 13))
            # Ticks of 10 ms are coarse for hundreds of processes that hardly run, but they include threads that ended.
            total += max(own / _TICKS_PER_S, _scheduled_seconds(pid)) + waited_for / _TICKS_PER_S
    return total


def memory_mib(pids: Iterable[int]) -> float:
    """Return the memory of processes; what they share counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(*_GONE):
            found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(found[1]) if found else 0
    return total / 1024


def _scheduled_seconds(pid: int) -> float:
    """Return the CPU seconds of the running threads, to the nanosecond (Documentation/scheduler/sched-stats)."""
    nanoseconds = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
