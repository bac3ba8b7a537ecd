"""Which SIGKILLs came from the kernel, for lack of memory.

The kernel counts such kills per control group and for the machine before it sends the signal, and names the victim in
its log, which on most systems only root may read (mm/oom_kill.c; Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import os

from launcher.node.kernel_log import KERNEL_LOG, open_log, read_records

CERTAIN = "certain"  # the log names the process; without a log, a control group of its own counts one more
PROBABLE = "probable"  # it happened on this machine or in its group, to a process that is not told
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h; in any other, the log's numbers are not ours
PERIOD_S = 15.0
_MACHINE = "/proc/vmstat"


class KernelKills:
    """Compares the kernel's counts when a process has ended with those from before.

    Each kill that is counted explains the end of one process only. If the log can be read, it alone decides on ranks,
    and the counts only on a rank's children.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._groups: dict[int, tuple[str, bool]] = {}  # by process id: the counter's file, and whether it is its own
        # By file, as they were before the last forget() and at it, with the kills that have explained a process.
        self._counts = {_MACHINE: (self._count(_MACHINE),) * 2}
        self._log = self._open_log()
        self._named: set[int] = set()  # by the log

    def watch(self, pid: int) -> None:
        """Note the control group of a process, which must still live: under cgroup v1 a zombie has none."""
        found = self._find_counter(pid)
        if found is not None:
            self._groups[pid] = found
            self._counts.setdefault(found[0], (self._count(found[0]),) * 2)

    def forget(self) -> None:
        """Disregard kills from before the last call, such as that of a helper; to be called every PERIOD_S."""
        self._counts = {path: (lately, self._count(path)) for path, (_, lately) in self._counts.items()}

    def judge(self, pid: int, *, was_child: bool = False) -> str | None:
        """Return CERTAIN or PROBABLE if the kernel killed this process, or None if nothing speaks for it.

        was_child: not the process but a child of it was killed, as a shell's exit code tells; the log names that by an
        id that is not known here.
        """
        if self._log is not None and not was_child:
            return CERTAIN if self._is_in_log(pid) else None  # it names every one
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
        """Return a descriptor at the end of the kernel's log, so that only later records are read; None if denied."""
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
