"""Write to stdout and stderr: a blocked terminal (Ctrl-S, a pager) never stalls a run.

Lines of ranks that a blocked terminal would have shown are dropped and counted. The logs get all.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial

from launcher.escapes import clean
from launcher.output.lines import STDERR, STDOUT
from launcher.output.write_queue import Limits, WriteQueue

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
        self._is_terminal = is_terminal
        # Wait for a file or pipe that still takes data; a person can't read what a terminal can't keep up with.
        self._patience_s = patience_s if patience_s is not None else (0.0 if is_terminal else _PATIENCE_S)
        self._queue = WriteQueue("terminal", self._break, limits=Limits(QUEUE_BYTES, 0, self._patience_s))
        self._lock = threading.Lock()  # guards the two counts
        self._dropped_lines = 0
        self._own_waiting = 0  # messages of `launch` that are not written yet
        self._closed_fds: set[int] = set()
        self.on_gone: Callable[[], object] | None = None  # what ends if the reader of a pipe is gone: called once
        self._queue.start()

    def put(self, fd: int, block: bytes) -> None:
        """Queue whole lines of ranks.

        If the queue is full, wait while the reader still reads; drop and count the lines if the reader is blocked.
        """
        if not self._queue.put(partial(self._write_next, fd, block), len(block)):
            with self._lock:
                self._dropped_lines += block.count(b"\n")

    def say(self, text: str, fd: int) -> None:
        """Queue a message of `launch`, which is never dropped; control characters in it are removed."""
        block = clean(text.encode("utf-8", "replace")) + b"\n"
        with self._lock:
            self._own_waiting += 1
        self._queue.put(partial(self._write_message, fd, block), len(block), is_kept=True)

    def close(self) -> None:
        """Wait until all is written; give up on a file or pipe whose reader is blocked, and say how much it missed."""
        began_at = time.monotonic()
        while not self._queue.wait(0.1):
            if min(self._queue.stalled_s, time.monotonic() - began_at) > self._farewell_s():
                _say_at_once(f"launch: {self._queue.waiting_bytes} bytes of output were never read")
                return
        self._queue.close()

    def _break(self, error: Exception) -> None:
        """Say that printing has failed: the run continues, and nothing more is printed."""
        self._closed_fds.update((STDOUT, STDERR))
        _say_at_once(f"launch: printing failed ({error!r}); the run continues")

    def _farewell_s(self) -> float:
        """Return how long a reader may be blocked at the end: longest if the cause, or another message, waits."""
        if self._is_terminal or math.isinf(self._patience_s):
            return math.inf
        return _OWN_FAREWELL_S if self._own_waiting else _FAREWELL_S

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _write_message(self, fd: int, block: bytes) -> None:
        self._write_next(fd, block)
        with self._lock:
            self._own_waiting -= 1

    def _write_next(self, fd: int, block: bytes) -> None:
        with self._lock:
            dropped, self._dropped_lines = self._dropped_lines, 0
        if dropped:
            self._write(STDERR, f"launch: {dropped} lines not shown here; the logs have all of them\n".encode())
        self._write(fd, block)

    def _write(self, fd: int, block: bytes) -> None:
        view = memoryview(block)
        try:
            while view and fd not in self._closed_fds:
                view = view[write_some(fd, view) :]
                self._queue.note_progress()
        except OSError as error:
            # The pager was quit, the terminal closed, or the disk is full; the run continues.
            self._closed_fds.add(fd)
            if error.errno == errno.EPIPE and self.on_gone is not None:
                self.on_gone()
                self.on_gone = None
            elif fd == STDOUT:
                text = f"launch: can't write to stdout any more ({error.strerror}); the run continues\n"
                self._write(STDERR, text.encode())


def write_some(fd: int, view: memoryview) -> int:
    """Write what a descriptor takes now, and return how many bytes; raise OSError if it was closed."""
    try:
        return os.write(fd, view[:_PIECE_BYTES])
    except BlockingIOError:  # another program has made the terminal non-blocking
        select.select([], [fd], [])
        return 0


def _say_at_once(text: str) -> None:
    """Print a last message, unless stderr itself is what nobody reads."""
    with contextlib.suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, f"{text}\n".encode())
