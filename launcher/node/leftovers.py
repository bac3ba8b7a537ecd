"""Processes of runs on this node: those of a run that goes on, and those that nobody looks after any more."""

from __future__ import annotations

import os

from launcher.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOADER = b'print("~launch '  # stands in the command line of every guardian and supervisor


def find_runs(own_mark: str) -> list[dict[str, Any]]:
    """Return the processes of other runs of this user: pid, name, mark, and whether a supervisor still owns them."""
    everything = processes.read_all()
    found = []
    for process in everything.values():
        mark = processes.read_mark(process.pid)
        if mark is None or mark == own_mark or not _is_ours(process.pid) or not processes.is_alive(process):
            continue
        found.append(
            {
                "pid": process.pid,
                "name": process.name,
                "mark": mark,
                "is_owned": _has_keeper(process, everything),
            }
        )
    return found


def _is_ours(pid: int) -> bool:
    """Whether it runs as the user that we are; root may see everybody's, and they are not ours for that."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False


def _has_keeper(process: processes.Process, everything: dict[int, processes.Process]) -> bool:
    """Whether a guardian or supervisor is among the ancestors."""
    seen = set()
    while process.ppid in everything and process.ppid not in seen:
        process = everything[process.ppid]
        seen.add(process.pid)
        if _LOADER in processes.read_command_line(process.pid):
            return True
    return False
