"""Write to the terminal from a separate thread, so that a blocked one (Ctrl-S, a pager) never stalls a run.

The queue is bounded: lines of ranks that a blocked terminal would have shown are dropped and counted. The logs get all.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import deque

from launcher.concurrency import start_thread
from launcher.escapes import clean
from launcher.output.lines import STDERR, STDOUT

QUEUE_BYTES = 6 << 20
_PATIENCE_S = 1.0
_PIECE_BYTES = 64 << 10  # small enough to notice that the reader still reads
_FAREWELL_S = 5.0
_OWN_FAREWELL_S = 60.0


class Terminal:
    """Writes to stdout and stderr from a separate thread.

    Blocks are written whole, in the order in which the threads queued them. Lines of ranks (`put`) may be
    dropped while a reader is blocked; messages of `launch` (`say`) never are, so the queue may outgrow its bound.
    """

    def __init__(self, *, is_terminal: bool, patience_s: float | None = None) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._own_waiting = 0  # unread bytes, up to the last message of `launch`
        self._queued_bytes = 0
        self._dropped_lines = 0
        self._is_terminal = is_terminal
        # Wait for a file or pipe that still takes data; a person can't read what a terminal can't keep up with.
        self._patience_s = patience_s if patience_s is not None else (0.0 if is_terminal else _PATIENCE_S)
        self._moved_at = time.monotonic()
        self._closed_fds: set[int] = set()
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = start_thread(self._write_all, "terminal", self._break)

    def put(self, fd: int, block: bytes) -> None:
        """Queue whole lines of ranks.

        If the queue is full, wait while the reader still reads; drop and count the lines if the reader is blocked.
        """
        with self._changed:
            while self._queued_bytes >= QUEUE_BYTES and not self._is_stuck():
                self._changed.wait(0.1)
            if self._queued_bytes >= QUEUE_BYTES:
                self._dropped_lines += block.count(b"\n")
                return
            self._append(fd, block)

    def say(self, text: str, fd: int) -> None:
        """Queue a message of `launch`, which is never dropped; control characters in it are removed."""
        with self._changed:
            self._append(fd, clean(text.encode("utf-8", "replace")) + b"\n")
            self._own_waiting = self._queued_bytes  # they come last

    def close(self) -> None:
        """Wait until all is written; give up on a file or pipe whose reader is blocked, and say how much it missed."""
        with self._changed:
            self._is_closing = True
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - self._moved_at > self._farewell_s():
                text = f"launch: {self._queued_bytes} bytes of output were never read\n"
                with contextlib.suppress(OSError):
                    os.write(STDERR, text.encode())
                return

    def _break(self, error: Exception) -> None:
        """Say that the writing thread has failed: the run continues, and nothing more is printed."""
        self._patience_s = 0.0
        text = f"launch: printing failed ({error!r}); the run continues\n"
        with contextlib.suppress(OSError):
            os.write(STDERR, text.encode())

    def _farewell_s(self) -> float:
        """Return how long a reader may be blocked at the end: longest if the cause, or another message, waits."""
        if self._is_terminal or math.isinf(self._patience_s):
            return math.inf
        return _OWN_FAREWELL_S if self._own_waiting else _FAREWELL_S

    def _append(self, fd: int, block: bytes) -> None:
        self._queue.append((fd, block))
        self._queued_bytes += len(block)
        self._changed.notify_all()

    def _is_stuck(self) -> bool:
        return time.monotonic() - self._moved_at >= self._patience_s

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._is_closing:
                        return
                    self._changed.wait()
                fd, block = self._queue.popleft()
                dropped, self._dropped_lines = self._dropped_lines, 0
                self._moved_at = time.monotonic()
            if dropped:
                self._write(STDERR, f"launch: {dropped} lines not shown here; the logs have all of them\n".encode())
            self._write(fd, block)
            with self._changed:
                self._queued_bytes -= len(block)
                self._own_waiting = max(0, self._own_waiting - len(block))
                self._moved_at = time.monotonic()
                self._changed.notify_all()

    def _write(self, fd: int, block: bytes) -> None:
        view = memoryview(block)
        try:
            while view and fd not in self._closed_fds:
                view = view[write_some(fd, view) :]
                self._moved_at = time.monotonic()
        except OSError as error:
            # The pager was quit, the terminal closed, or the disk is full; the run continues.
            self._closed_fds.add(fd)
            if fd == STDOUT:
                text = f"launch: can't write to stdout any more ({error.strerror}); the run continues\n"
                self._write(STDERR, text.encode())


def write_some(fd: int, view: memoryview) -> int:
    """Write what a descriptor takes now, and return how many bytes; raise OSError if it was closed."""
    try:
        return os.write(fd, view[:_PIECE_BYTES])
    except BlockingIOError:  # another program has made the terminal non-blocking
        select.select([], [fd], [])
        return 0
