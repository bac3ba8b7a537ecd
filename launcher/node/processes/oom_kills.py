"""Which SIGKILLs came from the kernel because memory ran out.

Before it sends the signal, the kernel counts the kill. It also names the victim in its log, which on most systems only
root may read (mm/oom_kill.c).
"""

from __future__ import annotations

import os

from launcher.node.kernel_log import KERNEL_LOG, open_log, read_records
from launcher.node.system import FIRST_PID_NAMESPACE, read_rows

CERTAIN = "certain"  # the log names the process
PROBABLE = "probable"  # a process on this machine was killed, but it is unknown which
PERIOD_S = 15.0


class OomKills:
    """Compares the kernel's count after a process has ended with that from before, where its log can't be read.

    The count is of the whole machine, with the kills in any container or control group. Each explains the end of one
    process only.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        # At the last forget() but one and at the last, plus the kills that explained a process.
        self._counts = (self._count(),) * 2
        self._log = self._open_log()
        self._named: set[int] = set()  # process ids that the log has named

    def forget(self) -> None:
        """Disregard kills from before the previous call, such as that of another process; call this every PERIOD_S."""
        self._counts = self._counts[1], self._count()

    def judge(self, pid: int, *, was_child: bool = False) -> str | None:
        """Return CERTAIN or PROBABLE if the kernel killed this process, or None if there is no evidence for that.

        was_child: a child of the process was killed, as a shell's exit code shows; the log names it by an id that is
        unknown here.
        """
        if self._log is not None and not was_child:
            return CERTAIN if self._is_in_log(self._log, pid) else None  # the log names every victim
        before, lately = self._counts
        if self._count() <= before:
            return None
        self._counts = before + 1, max(before + 1, lately)
        return PROBABLE

    def _count(self) -> int:
        """Return how many the kernel has killed, or 0 if it doesn't count them, as before Linux 4.13."""
        rows = read_rows(self._root + "/proc/vmstat")
        return next((int(row[1]) for row in rows if row[0] == "oom_kill"), 0)

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

    def _is_in_log(self, log: int, pid: int) -> bool:
        for record in read_records(log):
            for before, after in ((b"Killed process ", b" "), (b",pid=", b",")):
                self._named.update(_numbers_between(record, before, after))
        return pid in self._named


def _numbers_between(records: bytes, before: bytes, after: bytes) -> list[int]:
    found = [piece.partition(after)[0] for piece in records.split(before)[1:]]
    return [int(number) for number in found if number.isdigit()]
