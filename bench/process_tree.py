"""Read the CPU time and memory of a process and its descendants from /proc while they run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)  # the process exited meanwhile


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds so far of a process and its descendants, including those that it has waited for."""
    total = 0.0
    for pid in find_tree(root):
        with contextlib.suppress(*_GONE):
            own, waited_for = _ticks(pid)
            # Ticks of 10 ms are coarse for hundreds of processes that hardly run, but they include threads that ended.
            total += max(own / _TICKS_PER_S, _scheduled_seconds(pid)) + waited_for / _TICKS_PER_S
    return total


def memory_mib(root: int) -> float:
    """Return the memory of a process and its descendants; shared pages count once."""
    total = 0
    for pid in find_tree(root):
        with contextlib.suppress(*_GONE):
            total += _kib(f"/proc/{pid}/smaps_rollup", "Pss")
    return total / 1024


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process."""
    return _kib(f"/proc/{pid}/status", "VmHWM") / 1024


def find_tree(root: int) -> Iterator[int]:
    """Yield the ids of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(*_GONE):
            children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:  # the list grows
        yield pid
        found += children.get(pid, [])


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _ticks(pid: int) -> tuple[int, int]:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _scheduled_seconds(pid: int) -> float:
    """Return the CPU seconds of the running threads, to the nanosecond (Documentation/scheduler/sched-stats)."""
    nanoseconds = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def _kib(path: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
