"""Which SIGKILLs came from the kernel because memory ran out.

Before it sends the signal, the kernel counts the kill for the control group and for the machine. It also names the
victim in its log, which on most systems only root may read (mm/oom_kill.c; Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import os

from launcher.node.kernel_log import KERNEL_LOG, open_log, read_records
from launcher.node.system import FIRST_PID_NAMESPACE, read_text

CERTAIN = "certain"  # the log names the process; or, without a log, the process's own control group counts one more
PROBABLE = "probable"  # a process on this machine or in its group was killed, but it is unknown which
PERIOD_S = 15.0
_MACHINE = "/proc/vmstat"


class OomKills:
    """Compares the kernel's counts after a process has ended with those from before.

    Each counted kill explains the end of one process only. If the log can be read, it alone decides about ranks, and
    the counts decide only about a rank's children.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._groups: dict[int, tuple[str, bool]] = {}  # by process id: the counter's file, and whether it is its own
        # By file: the counts at the last forget() but one and at the last, plus the kills that explained a process.
        self._counts = {_MACHINE: (self._count(_MACHINE),) * 2}
        self._log = self._open_log()
        self._named: set[int] = set()  # process ids that the log has named

    def watch(self, pid: int) -> None:
        """Record the control group of a process, which must be alive: under cgroup v1 a zombie has none."""
        found = self._find_counter(pid)
        if found is not None:
            self._groups[pid] = found
            self._counts.setdefault(found[0], (self._count(found[0]),) * 2)

    def forget(self) -> None:
        """Disregard kills from before the previous call, such as that of another process; call this every PERIOD_S."""
        self._counts = {path: (lately, self._count(path)) for path, (_, lately) in self._counts.items()}

    def judge(self, pid: int, *, was_child: bool = False) -> str | None:
        """Return CERTAIN or PROBABLE if the kernel killed this process, or None if there is no evidence for that.

        was_child: a child of the process was killed, as a shell's exit code shows; the log names it by an id that is
        unknown here.
        """
        if self._log is not None and not was_child:
            return CERTAIN if self._is_in_log(pid) else None  # the log names every victim
        path, is_own = self._groups.get(pid, ("", False))
        if path and self._has_risen(path):  # each kill explains one process
            self._explain(path)
            self._explain(_MACHINE)
            is_alone = [path for path, _ in self._groups.values()].count(path) == 1
            return CERTAIN if is_own and is_alone else PROBABLE
        return PROBABLE if self._log is None and self._has_risen(_MACHINE) else None

    def _has_risen(self, path: str) -> bool:
        return self._count(path) > self._counts[path][0]

    def _explain(self, path: str) -> None:
        before, lately = self._counts[path]
        self._counts[path] = (before + 1, max(before + 1, lately))

    def _find_counter(self, pid: int) -> tuple[str, bool] | None:
        """Return the nearest file that counts kills of this process's control group, and whether it is its own."""
        for line in self._read("/proc/%d/cgroup" % pid).splitlines():
            controllers, _, path = line.partition(":")[2].partition(":")
            if controllers not in ("", "memory") or not path:
                continue
            mount, name = ("", "memory.events") if not controllers else ("/memory", "memory.oom_control")
            # A container may see its own group mounted as the root, but still get its path as seen from outside.
            steps = path.strip("/").split("/") if path.strip("/") else []
            for length in range(len(steps), -1, -1):
                file = "/".join(["/sys/fs/cgroup" + mount, *steps[:length], name])
                if os.path.exists(self._root + file):
                    is_whole_machine = bool(controllers) and length == 0  # v2's root has no counter
                    return file, length == len(steps) and not is_whole_machine
        return None

    def _count(self, path: str) -> int:
        """Return `oom_kill` from a file of counters, or 0 if it has none, as before Linux 4.13."""
        for line in self._read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
        return 0

    def _read(self, path: str) -> str:
        return read_text(self._root + path)

    def _open_log(self) -> int | None:
        """Return a descriptor at the end of the kernel's log, so that only later records are read; None if denied."""
        try:
            if os.readlink(self._root + "/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
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
