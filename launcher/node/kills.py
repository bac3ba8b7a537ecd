"""Kills by the kernel for lack of memory, told from every other SIGKILL.

The kernel counts them per control group and for the machine before it sends the signal, and names the victim in its
log, which on most systems root alone may read (mm/oom_kill.c; Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import os

from launcher.node.kernel_log import KERNEL_LOG, open_log, read_records

CERTAIN = "certain"  # the log names the process, or its own control group counts one more
PROBABLE = "probable"  # it happened on this machine, to a process that is not told
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h; in any other, the log's numbers are not ours
PERIOD_S = 15.0
_MACHINE = "/proc/vmstat"


class KernelKills:
    """What the kernel had counted when the run began, and what it counts when a process has ended."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._machine = self._lately = self._count(_MACHINE)
        self._groups: dict[int, tuple[str, bool]] = {}  # by process id: the counter's file, and whether it is its own
        self._counts: dict[str, int] = {}  # by file, with the kills that have explained a process
        self._log = self._open_log()
        self._named: set[int] = set()  # by the log

    def watch(self, pid: int) -> None:
        """Note the control group of a process while it lives: a zombie has none, under cgroup v1."""
        found = self._find_counter(pid)
        if found is not None:
            self._groups[pid] = found
            self._counts.setdefault(found[0], self._count(found[0]))

    def forget(self) -> None:
        """Leave out what happened on the machine before the last call: to be called every PERIOD_S."""
        self._machine, self._lately = self._lately, self._count(_MACHINE)

    def judge(self, pid: int) -> str | None:
        """Say whether the kernel killed this process, or None where nothing speaks for it."""
        path, is_own = self._groups.get(pid, ("", False))
        has_risen = bool(path) and self._count(path) > self._counts[path]
        if has_risen:  # each kill explains one process
            self._counts[path] += 1
            self._machine, self._lately = self._machine + 1, self._lately + 1
        if (has_risen and is_own) or self._is_in_log(pid):
            return CERTAIN
        # A log that we read would have named it.
        return PROBABLE if self._log is None and (has_risen or self._count(_MACHINE) > self._machine) else None

    def _find_counter(self, pid: int) -> tuple[str, bool] | None:
        """Return the nearest file that counts kills of this process's control group, and whether it is its own."""
        for line in self._read("/proc/%d/cgroup" % pid).splitlines():
            controllers, _, path = line.partition(":")[2].partition(":")
            if controllers not in ("", "memory") or not path:
                continue
            mount, name = ("", "memory.events") if not controllers else ("/memory", "memory.oom_control")
            # A container may see itself mounted as the root, and still be told its path from outside.
            steps = path.strip("/").split("/") if path.strip("/") else []
            for length in range(len(steps), -1, -1):
                file = "/".join(["/sys/fs/cgroup" + mount, *steps[:length], name])
                if os.path.exists(self._root + file):
                    is_whole_machine = bool(controllers) and length == 0  # v2 has no counter there
                    return file, length == len(steps) and not is_whole_machine
        return None

    def _count(self, path: str) -> int:
        """Return the `oom_kill` of a file of counters; 0 where there is none, as before Linux 4.13."""
        for line in self._read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
        return 0

    def _read(self, path: str) -> str:
        try:
            with open(self._root + path) as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return ""

    def _open_log(self) -> int | None:
        """Return the kernel's log at its end, so that only what follows is read."""
        try:
            if os.readlink(self._root + "/proc/self/ns/pid") != _FIRST_PID_NAMESPACE:
                return None
            fd = open_log(self._root + KERNEL_LOG)
            os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            return None
        return fd

    def _is_in_log(self, pid: int) -> bool:
        for record in read_records(self._log) if self._log is not None else ():
            for before, after in ((b"Killed process ", b" "), (b",pid=", b",")):
                self._named.update(_numbers_between(record, before, after))
        return pid in self._named


def _numbers_between(records: bytes, before: bytes, after: bytes) -> list[int]:
    found = [piece.partition(after)[0] for piece in records.split(before)[1:]]
    return [int(number) for number in found if number.isdigit()]
