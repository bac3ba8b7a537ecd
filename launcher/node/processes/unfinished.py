"""The files that processes are writing when they are killed: such as a checkpoint, which may then be incomplete."""

from __future__ import annotations

import os

from launcher.node import messages
from launcher.node.processes import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
_LOGS = (".log", ".txt", ".jsonl", ".csv", ".out", ".err", " (deleted)")


def find_unfinished(pids: Iterable[int]) -> list[list[Any]]:
    """Return the files that these processes are writing from the start on, each with the rank of its process, or None.

    Only /proc is read: to look at a file itself may take for ever if its file system hangs, which may be why the rank
    has not finished. Files that are appended to, or named as logs, do not count.
    """
    found: dict[str, int | None] = {}
    for pid in pids:
        rank = proc.read_environment(pid, "RANK").get("RANK", "")
        for path in _list_written(pid):
            found.setdefault(path, int(rank) if rank.isdigit() and len(rank) < 8 else None)
    return [[rank, path] for path, rank in found.items()][: messages.MOST_NAMES]


def _list_written(pid: int) -> list[str]:
    found = []
    try:
        for fd in os.listdir("/proc/%d/fd" % pid):
            path = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            is_file = int(fd) > 2 and path.startswith("/") and not path.startswith(_NO_FILES)
            if is_file and not path.endswith(_LOGS) and _is_written("/proc/%d/fdinfo/%s" % (pid, fd)):
                found.append(os.fsencode(path).decode("utf-8", "replace"))
    except OSError:  # it has exited meanwhile, or belongs to another user
        pass
    return found


def _is_written(fdinfo: str) -> bool:
    with open(fdinfo) as file:
        values = dict(line.split(":", 1) for line in file if line.startswith(("pos:", "flags:")))
    flags = int(values["flags"], 8)
    return int(values["pos"]) > 0 and bool(flags & os.O_ACCMODE) and not flags & os.O_APPEND
