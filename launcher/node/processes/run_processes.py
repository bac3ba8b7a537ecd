"""Which processes belong to a run.

There are three signs, because each alone can be lost: the run's mark in the environment (setproctitle may overwrite
it), descent from guardian or supervisor (lost when a parent dies and no subreaper is left), and the sessions that the
run's processes lead. A process that has shown one of them stays part of the run.

Do not assume that a run is over because /proc shows none of its processes: reading it is slower than forking, and
hidepid hides other users' processes. What the kernel reports about a process's own children is exact: as subreapers,
guardian and supervisor have children as long as any of their descendants lives.
"""

from __future__ import annotations

import os
from typing import Any, Iterable

from launcher.node import messages
from launcher.node.processes import proc
from launcher.node.processes.proc import Process

# What doesn't count as a file that is being written when its process is killed.
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
_LOGS = (".log", ".txt", ".jsonl", ".csv", ".out", ".err", " (deleted)")
_HIDDEN = ["?"] + ["0"] * 19  # the fields of a process that /proc hides
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process adopt the orphans among its descendants; without libffi or prctl nothing changes."""
    proc.call_prctl(_PR_SET_CHILD_SUBREAPER, 1)  # otherwise orphans go to init; mark and sessions still find them


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


def has_children() -> bool:
    """Ask the kernel whether this process has children; one that has exited counts until it is reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class RunProcesses:
    """The processes of one run on this machine.

    A process that `living` has returned once stays part of the run until it exits, whatever becomes of its mark, parent
    and session. A session counts only while its leader exists and is the process that was recorded: after that, its id
    may be reused. The keepers (guardian and supervisor) are never part of the run, nor are the strangers and the
    processes that these start.

    Each `living` reads /proc once, while processes come and go: its result holds for that moment, and only the next
    call finds what was started since. `starter` and `ranks` keep processes that have exited.
    """

    def __init__(self, mark: str | None, keepers: Iterable[int] = ()) -> None:
        self.marks = {mark} if mark else set()  # more than one while leftover processes of earlier runs are stopped
        self.keepers = set(keepers)  # guardian and supervisor, or the shim: what they start is part of the run
        self.unfinished: list[list[Any]] = []  # what its processes were writing when they were killed
        # A process that started before this can't be part of the run, so its environment isn't read.
        self.born = 0
        # Start times, by process id, of what is part of no run: children that a login's rc files started before the
        # guardian, and what reads the GPUs.
        self.strangers: dict[int, int] = {}
        self.starter: Process | None = None  # of the ranks: torchrun, a shim, or a warm Python
        self.ranks: dict[int, Process] = {}  # by local rank
        self.has_started = False  # a rank, which may have ended before this process knew of it
        self.global_ranks: dict[int, str | None] = {}  # by local rank, where torchrun doesn't start them
        self._sessions: dict[int, int] = {}  # session id -> start time of its leader
        self._known: dict[int, int] = {}  # process id -> start time, of what the last `living` found

    def add_rank(self, local_rank: int, process: Process) -> None:
        """Record the process of a local rank."""
        self.ranks[local_rank] = process
        self.has_started = True
        self._sessions[process.pid] = process.started

    def set_starter(self, process: Process) -> None:
        """Record the process that starts the ranks."""
        self.starter = process
        self._sessions[process.pid] = process.started

    def find_starter(self) -> Process | None:
        """Return the process that starts the ranks as it is now, or None if it has ended, or there is none."""
        now = proc.read_process(self.starter.pid) if self.starter is not None else None
        return now if now is not None and self.starter is not None and now.started == self.starter.started else None

    def note_unfinished(self, living: list[Process]) -> None:
        """Note which files these processes are writing, before they are killed."""
        if living:
            self.unfinished = _find_unfinished({process.pid: self._find_rank(process) for process in living})

    def _find_rank(self, process: Process) -> str:
        """Return the rank of a process, as a number; empty if it is unknown."""
        # A rank that was forked shows the environment of the Python that has forked it.
        own = {process.pid: self.global_ranks.get(local_rank) for local_rank, process in self.ranks.items()}
        return own.get(process.session) or proc.read_environment(process.pid, "RANK").get("RANK", "")

    def living(self) -> list[Process]:
        """Return every process of the run that is alive, except for the keepers."""
        everything = proc.read_all()
        mine = {
            process.pid: process
            for process in everything.values()
            if process.pid not in self.keepers
            and not self._is_stranger(process)
            and self._has_sign(process, everything)
        }
        self._add_descendants(everything, mine)
        self._known = {process.pid: process.started for process in mine.values()}
        for process in mine.values():
            if process.session in mine:
                self._sessions[process.session] = mine[process.session].started
        return [process for process in mine.values() if process.state not in proc.GONE]

    def has_children(self) -> bool:
        """Tell whether this process has a child that isn't a stranger; without strangers, zombies count too."""
        return bool(self.living_children()) if self.strangers else has_children()

    def living_children(self) -> list[Process]:
        """Return this process's living children that aren't strangers; one that /proc hides is named `?`."""
        found = [proc.read_process(pid) or proc.Process(pid, "?", _HIDDEN) for pid in read_children()]
        return [process for process in found if process.state not in proc.GONE and not self._is_stranger(process)]

    def _is_stranger(self, process: Process) -> bool:
        return self.strangers.get(process.pid) == process.started

    def _has_sign(self, process: Process, everything: dict[int, Process]) -> bool:
        return (
            self._known.get(process.pid) == process.started
            or self._in_session(process, everything)
            or self._has_mark(process)
        )

    def _in_session(self, process: Process, everything: dict[int, Process]) -> bool:
        leader = everything.get(process.session)
        return leader is not None and self._sessions.get(leader.pid) == leader.started

    def _has_mark(self, process: Process) -> bool:
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


# ---- what they are writing when they are killed, such as a checkpoint, which may then be incomplete ------------------


def _find_unfinished(ranks: dict[int, str]) -> list[list[Any]]:
    """Return the files that these processes are writing from the start on, each with the rank of its process, or None.

    Only /proc is read: to look at a file itself may take for ever if its file system hangs, which may be why the rank
    has not finished. Files that are appended to, or named as logs, do not count.
    """
    found: dict[str, int | None] = {}
    for pid, rank in ranks.items():
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
