"""Write to the disk of the logs in a separate thread, so that one that is slow or hangs never stalls a run.

A network file system may stop responding for minutes. The run then continues: its heartbeats and messages need no
disk, and its output waits in memory, up to a bound that all hosts share.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable

from launcher.concurrency import start_thread

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


class DiskWriter:
    """Does what touches one disk, in a separate thread and in the order in which it was put."""

    def __init__(self, on_stall: Callable[[], object], on_failure: Callable[[Exception], object]) -> None:
        """on_stall: called when the disk has not responded for too long; on_failure: gets what a work raised."""
        self._on_stall = on_stall
        self._on_failure = on_failure
        self._queue: deque[tuple[Callable[[], object], int]] = deque()
        self._queued_bytes = 0
        self._began_at: float | None = None  # monotonic: the work at hand; None: there is none
        self._has_stalled = False  # since the queue was empty
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], object], size: int = 0) -> bool:
        """Queue `work`, which keeps `size` bytes in memory; return False if it is dropped.

        If the queue is full, wait while the disk responds; if it does not, drop what has a size. Raise LauncherError if
        this machine can't start another thread.
        """
        with self._changed:
            if self._thread is None:
                self._thread = start_thread(self._write_all, "disk", self._on_failure)
            while size and self._queued_bytes >= QUEUE_BYTES and self._waited_s() < STALLED_S:
                self._changed.wait(0.1)
            is_dropped = size > 0 and self._queued_bytes >= QUEUE_BYTES
            if not is_dropped:
                self._queue.append((work, size + ENTRY_BYTES))
                self._queued_bytes += size + ENTRY_BYTES
                self._changed.notify_all()
        self._say_stall()
        return not is_dropped

    def wait(self, limit_s: float | None = None, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all is written; return False if that takes too long, also for a user in a hurry."""
        deadline = time.monotonic() + (FAREWELL_S if limit_s is None else limit_s)
        has_hurried = False
        while True:
            with self._changed:
                if not self._queue and self._began_at is None:
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

    def _waited_s(self) -> float:
        return 0.0 if self._began_at is None else time.monotonic() - self._began_at

    def _say_stall(self) -> None:
        with self._changed:
            is_new = not self._has_stalled and self._waited_s() >= STALLED_S
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
                self._began_at = time.monotonic()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next work may succeed
                self._on_failure(error)
            with self._changed:
                self._began_at = None
                self._queued_bytes -= size
                self._changed.notify_all()
