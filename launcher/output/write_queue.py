"""Write to a disk or a terminal in a separate thread, so that one that is slow or hangs never stalls a run.

A network file system may stop responding for minutes, and a terminal for as long as Ctrl-S lasts. The run then
continues: its heartbeats need neither of them, and its output waits in memory, up to a bound.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from launcher.concurrency import start_thread

# Of a disk; all hosts share the bound.
QUEUE_BYTES = 4 << 20  # an hour of what most runs print
ENTRY_BYTES = 700  # of memory for each entry beside its content
STALLED_S = 5.0  # for one write; a host counts as lost if nobody has read its messages for --silence, by default 15 s
HURRIED_S = 1.0  # for all that is queued, once the user is in a hurry: a disk that is well takes far less
FAREWELL_S = 60.0  # at the end of a run, for all that is queued; a disk that fails slowly would take days


class StalledError(OSError):
    """The disk does not respond; nothing is lost yet."""


def disk_not_awaited() -> OSError:
    """Return the error of what may not be written, since the user was in a hurry."""
    return OSError(errno.EINTR, "the wait for the disk was interrupted")


def disk_stalled() -> OSError:
    """Return the error of what was dropped, since the disk does not respond."""
    return OSError(errno.ETIMEDOUT, "the disk does not respond")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait in memory, and how long `put` waits for room while nothing is written."""

    queue_bytes: int
    entry_bytes: int  # of memory for each entry beside its content
    stalled_s: float  # with this long without progress nothing more is expected soon


class WriteQueue:
    """Does what writes to one disk or terminal, in a separate thread and in the order in which it was put.

    If the queue is full, `put` waits while the writes make progress: each work that begins or ends is progress, and so
    is `note_progress` within a long one. If they make none, what may be dropped is dropped.
    """

    def __init__(
        self, name: str, on_failure: Callable[[Exception], object], on_stall: Callable[[], object] = lambda: None,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        """name: of the thread; on_failure: gets what a work raised; on_stall: called when the writes have stalled.

        limits: None: those of a disk.
        """
        self._name = name
        self._on_failure = on_failure
        self._on_stall = on_stall
        self._limits = limits or Limits(QUEUE_BYTES, ENTRY_BYTES, STALLED_S)
        self._queue: deque[tuple[Callable[[], object], int]] = deque()
        self._queued_bytes = 0
        self._moved_at: float | None = None  # monotonic: the last progress of the work at hand; None: there is none
        self._has_stalled = False  # since the queue was empty
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def waiting_bytes(self) -> int:
        """How much is not written yet."""
        return self._queued_bytes

    @property
    def stalled_s(self) -> float:
        """For how long the work at hand has made no progress; 0 if there is none."""
        moved_at = self._moved_at
        return 0.0 if moved_at is None else time.monotonic() - moved_at

    def start(self) -> None:
        """Start the thread, as `put` does otherwise; raise LauncherError if this machine can't start another one."""
        with self._changed:
            self._start()

    def put(self, work: Callable[[], object], size: int = 0, *, is_kept: bool = False) -> bool:
        """Queue `work`, which keeps `size` bytes in memory; return False if it is dropped.

        What has no size, or is kept, waits for no room and is never dropped. Raise LauncherError if this machine can't
        start another thread.
        """
        may_be_dropped = size > 0 and not is_kept
        with self._changed:
            self._start()
            while may_be_dropped and self._is_full() and self.stalled_s < self._limits.stalled_s:
                self._changed.wait(0.1)
            is_dropped = may_be_dropped and self._is_full()
            if not is_dropped:
                size += self._limits.entry_bytes
                self._queue.append((work, size))
                self._queued_bytes += size
                self._changed.notify_all()
        self._say_stall()
        return not is_dropped

    def note_progress(self) -> None:
        """Note that the work at hand, which calls this, has written something."""
        self._moved_at = time.monotonic()

    def wait(self, limit_s: float | None = None, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all is written; return False if that takes too long, also for a user in a hurry."""
        deadline = time.monotonic() + (FAREWELL_S if limit_s is None else limit_s)
        has_hurried = False
        while True:
            with self._changed:
                if not self._queue and self._moved_at is None:
                    return True
                if is_hurried() and not has_hurried:
                    has_hurried, deadline = True, min(deadline, time.monotonic() + HURRIED_S)
                if time.monotonic() >= deadline:
                    return False
                self._changed.wait(0.1)
            self._say_stall()

    def close(self, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait as `wait` does, and end the thread; what is put later is written by another one."""
        if not self.wait(is_hurried=is_hurried):
            return False  # it still waits for the disk
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = start_thread(self._write_all, self._name, self._on_failure)

    def _is_full(self) -> bool:
        return self._queued_bytes >= self._limits.queue_bytes

    def _say_stall(self) -> None:
        with self._changed:
            is_new = not self._has_stalled and self.stalled_s >= self._limits.stalled_s
            self._has_stalled = self._has_stalled or is_new
        if is_new:
            self._on_stall()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._has_stalled = False
                    if self._thread is not threading.current_thread():
                        return
                    self._changed.wait()
                work, size = self._queue.popleft()
                self._moved_at = time.monotonic()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next work may succeed
                self._on_failure(error)
            with self._changed:
                self._moved_at = None
                self._queued_bytes -= size
                self._changed.notify_all()
