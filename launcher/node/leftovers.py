"""Processes of runs on this node: those of a run that goes on, and those that nobody looks after any more."""

from __future__ import annotations

import os
import stat

from launcher.node import processes, workers

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
        if mark is None or _run_of(mark) == _run_of(own_mark):  # another of its nodes may be this machine as well
            continue
        if _is_ours(process.pid) and processes.is_alive(process):
            found.append((process, mark))
    owned = {mark for process, mark in found if _has_keeper(process, everything)}
    return [
        {"pid": process.pid, "name": process.name, "mark": mark, "is_owned": mark in owned} for process, mark in found
    ]


def _run_of(mark: str) -> list[str]:
    """Return run id and token; the index of the node comes after them."""
    return mark.split(".")[:2]


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


def remove_folders(run_ids: set[str]) -> None:
    """Remove the folders of runs of which nothing lives any more."""
    alive = {mark.partition(".")[0] for mark in map(processes.read_mark, processes.read_all()) if mark is not None}
    for base in workers.folder_places():
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names:
            path = os.path.join(base, name)
            run_id = name[len("launch-") :].rpartition("-")[0]
            if name.startswith("launch-") and run_id in run_ids - alive and _is_own_folder(path):
                workers.remove_folder(path)


def _is_own_folder(path: str) -> bool:
    """Whether it is a folder of ours, and no link that somebody else has laid there."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
