"""Which SIGKILLs probably came from the kernel because memory ran out: it counts each before it sends the signal."""

from __future__ import annotations

from launcher.node.system import read_rows

PROBABLE = "probable"  # a process on this machine was killed, but it is unknown which
PERIOD_S = 15.0


class OomKills:
    """Compares the kernel's count after a process has ended with that from before.

    The count is of the whole machine, with the kills in any container or control group. Each explains the end of one
    process only.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        # At the last forget() but one and at the last, plus the kills that explained a process.
        self._counts = (self._count(),) * 2

    def forget(self) -> None:
        """Disregard kills from before the previous call, such as that of another process; call this every PERIOD_S."""
        self._counts = self._counts[1], self._count()

    def judge(self) -> str | None:
        """Return PROBABLE if the kernel killed the process whose end was just seen, or None: no evidence for that."""
        before, lately = self._counts
        if self._count() <= before:
            return None
        self._counts = before + 1, max(before + 1, lately)
        return PROBABLE

    def _count(self) -> int:
        """Return how many the kernel has killed, or 0 if it doesn't count them, as before Linux 4.13."""
        rows = read_rows(self._root + "/proc/vmstat")
        return next((int(row[1]) for row in rows if row[0] == "oom_kill"), 0)
