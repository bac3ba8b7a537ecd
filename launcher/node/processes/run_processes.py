"""Which processes belong to a run.

There are two signs, because each alone can be lost: the run's mark in the environment (setproctitle may overwrite it),
and descent from guardian or supervisor (lost when a parent dies and no subreaper is left). A process that has shown one
of them stays part of the run.

Do not assume that a run is over because /proc shows none of its processes: reading it is slower than forking, and
hidepid hides other users' processes. What the kernel reports about a process's own children is exact: as subreapers,
guardian and supervisor have children as long as any of their descendants lives.
"""

from __future__ import annotations

import os
from typing import Iterable

from launcher.node.processes import proc
from launcher.node.processes.proc import Process

_HIDDEN = ["?"] + ["0"] * 19  # the fields of a process that /proc hides
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process adopt the orphans among its descendants; without libffi or prctl nothing changes."""
    # Otherwise orphans go to init; mark and sessions still find them.
    proc.call_c("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read_children() -> list[int]:
    """Return the process ids of this process's children, including zombies; none if the kernel keeps no such list.

    This is a hundred times faster than reading all of /proc, and hidepid hides nothing in it. The kernel reuses none of
    these ids before this process reaps it.
    """
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


class RunProcesses:
    """The processes of one run on this machine.

    A process that `living` has returned once stays part of the run until it exits, whatever becomes of its mark and
    parent. The keepers (guardian and supervisor) are never part of the run, nor are the strangers and what these start.

    Each `living` reads /proc once, while processes come and go: its result holds for that moment, and only the next
    call finds what was started since. `starter` and `ranks` keep processes that have exited.
    """

    def __init__(self, mark: str | None, keepers: Iterable[int] = ()) -> None:
        self.marks = {mark} if mark else set()  # more than one while leftover processes of earlier runs are stopped
        self.keepers = set(keepers)  # guardian and supervisor, or the shim: what they start is part of the run
        # A process that started before this can't be part of the run, so its environment isn't read.
        self.born = 0
        # Start times, by process id, of what is part of no run: children that a login's rc files started before the
        # guardian, and what reads the GPUs.
        self.strangers: dict[int, int] = {}
        self.starter: Process | None = None  # of the ranks: torchrun, a shim, or a warm Python
        self.ranks: dict[int, Process] = {}  # by local rank
        self.has_started = False  # a rank, which may have ended before this process knew of it
        self._known: dict[int, int] = {}  # process id -> start time, of what the last `living` found

    def add_rank(self, local_rank: int, process: Process) -> None:
        """Record the process of a local rank."""
        self.ranks[local_rank] = process
        self.has_started = True

    def living(self) -> list[Process]:
        """Return every process of the run that is alive, except for the keepers."""
        everything = proc.read_all()
        mine = {
            process.pid: process
            for process in everything.values()
            if process.pid not in self.keepers and not self._is_stranger(process) and self._has_sign(process)
        }
        self._add_descendants(everything, mine)
        self._known = {process.pid: process.started for process in mine.values()}
        return [process for process in mine.values() if process.state not in proc.GONE]

    def has_children(self) -> bool:
        """Tell whether this process has a child that isn't a stranger; one that has exited counts until it is reaped.

        So of a line of processes that fork and exit at once, one is seen, whenever this looks.
        """
        found = map(proc.read_process, read_children())
        return any(process is None or not self._is_stranger(process) for process in found)

    def living_children(self) -> list[Process]:
        """Return this process's living children that aren't strangers; one that /proc hides is named `?`."""
        found = [proc.read_process(pid) or proc.Process(pid, "?", _HIDDEN) for pid in read_children()]
        return [process for process in found if process.state not in proc.GONE and not self._is_stranger(process)]

    def _is_stranger(self, process: Process) -> bool:
        return self.strangers.get(process.pid) == process.started

    def _has_sign(self, process: Process) -> bool:
        if self._known.get(process.pid) == process.started:
            return True
        return process.started >= self.born and proc.read_mark(process.pid) in self.marks

    def _add_descendants(self, everything: dict[int, Process], mine: dict[int, Process]) -> None:
        children: dict[int, list[Process]] = {}
        for process in everything.values():
            children.setdefault(process.ppid, []).append(process)
        pending = list(self.keepers) + list(mine)
        while pending:
            for child in children.get(pending.pop(), ()):
                if child.pid not in mine and child.pid not in self.keepers and not self._is_stranger(child):
                    mine[child.pid] = child
                    pending.append(child.pid)
