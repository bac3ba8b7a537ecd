"""The processes that other runs have on this node.

Each process of a run belongs to one that is still active, or is left over: its guardian and supervisor are gone. For
the directories of such runs, see `processes.run_folders`.
"""

from __future__ import annotations

import os
import re
from typing import Any

from launcher.node import system
from launcher.node.processes import proc, run_folders

_LOADER = b'"~launch '  # part of the command line of every program that launch sends
_MARK = re.compile(r"([^.]+\.[0-9a-f]+)(?:\.|$)")


def find_runs(own_mark: str) -> list[dict[str, Any]]:
    """Return the processes of other runs of this user: pid, name, mark, and whether a supervisor still owns them."""
    everything = proc.read_all()
    found = []
    for process in everything.values():
        mark = proc.read_mark(process.pid)
        # Another node of this run may be on this machine too.
        if mark is None or not _run_of(mark) or _run_of(mark) == _run_of(own_mark):
            continue
        if _is_ours(process.pid) and _is_of_this_machine(process.pid) and proc.is_alive(process):
            found.append((process, mark))
    owned = {mark for process, mark in found if _has_keeper(process, everything)}
    return [
        {"pid": process.pid, "name": process.name, "mark": mark, "is_owned": mark in owned}
        for process, mark in found
        if mark in owned or _has_folder(process.pid, mark)
    ]


def _run_of(mark: str) -> str:
    """Return `RUN.TOKEN` of a mark `RUN.TOKEN.INDEX`, or "" if it isn't a mark of launch."""
    found = _MARK.match(mark)
    return found.group(1) if found else ""


def _is_ours(pid: int) -> bool:
    """Tell whether a process runs as this user: root can see those of others, which are not of its runs."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False


def _is_of_this_machine(pid: int) -> bool:
    """Tell whether a process is in this PID namespace: a container counts as another machine, with runs of its own."""
    return system.pid_namespace(pid) in (system.pid_namespace(), None)  # None: access denied


def _has_folder(pid: int, mark: str) -> bool:
    """Tell whether the directory of a process's run exists here, as it does until a census finds nothing left.

    The mark alone proves nothing: a job that a run gives to a scheduler (at, qsub) inherits it, wherever it runs.
    """
    files = proc.read_environment(pid, proc.FILES).get(proc.FILES, "")
    folder = os.path.dirname(files)
    if os.path.basename(folder).rpartition("-")[0] != "launch-" + mark.partition(".")[0]:
        return False
    # Look through /proc/PID/root too: a Slurm job may have a /tmp of its own.
    return any(map(run_folders.is_own, ("/proc/%d/root%s" % (pid, folder), folder)))


def _has_keeper(process: proc.Process, everything: dict[int, proc.Process]) -> bool:
    """Tell whether a guardian or supervisor is among the ancestors of a process."""
    seen = set()
    while process.ppid in everything and process.ppid not in seen:
        process = everything[process.ppid]
        seen.add(process.pid)
        if _LOADER in proc.read_command_line(process.pid):
            return True
    return False
