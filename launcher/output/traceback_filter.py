"""Keep tracebacks that are only consequences of another one off the screen, so that they don't bury the cause.

A rank that fails takes a second to exit; meanwhile its peers, which lost it, print pages. The logs get everything.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection

from launcher.output.lines import STDERR

HOLD_S = 5.0  # a run that prints something this long after a traceback has survived it
HELD_BYTES = 64 << 10  # of each rank; of a thousand, that is still little

# How a report of an error begins: Python's, also behind a progress bar, a SyntaxError's, NCCL's, and those of C++.
_CLUES = (b"Traceback (", b'  File "', b":[E", b"terminate called", b"Fatal Python error")
_START = re.compile(
    rb"^(?:[^\n]{0,200}?Traceback \(most recent call last\)"
    rb'|  File "[^"\n]+", line \d+$|\[rank\d+\]:\[E|terminate called after|Fatal Python error: )',
    re.MULTILINE,
)
# In about one of ten successful runs, node 0's torchrun, which holds the store, leaves the exit barrier first, and the
# others print a page of C++ frames: https://github.com/pytorch/pytorch/issues/69520.
_EXIT_BARRIER = re.compile(rb"^[^\n]*(?:failed on SocketImpl\(|Error waiting on exit barrier)", re.MULTILINE)

Show = Callable[[str, int | None, int, bytes, float], None]
Source = tuple[str, int | None]  # a host and a rank, None for torchrun


class TracebackFilter:
    """Passes the output of ranks on to the screen, except for tracebacks that may only be consequences of another one.

    The first traceback is shown as it comes. While the run may be about to fail, the tracebacks of other ranks are held
    back, and so is what those ranks then print on stderr; if the run continues, all of that is shown with the next
    lines. Once `withhold` was called the run is failing, and it is shown only if `release` names its source. What
    torchrun says of its exit barrier always waits for the end of the run.

    The lines of one stream keep their order. `take` is called by all reader threads, the rest by the event loop; nobody
    holds the lock while something is shown, since a terminal may be slow.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._first: Source | None = None  # whose traceback is shown as it comes
        self._first_at = 0.0  # monotonic
        self._held: dict[Source, bytearray] = {}
        self._is_failing = False

    def take(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        """Take whole lines of one stream; at: when they came (wall-clock seconds)."""
        if self._first is not None and self._has_survived():
            self.release()
        shown = len(lines)
        if stream == STDERR:
            with self._lock:
                shown = self._divide((host, rank), lines)
        if shown:
            self._show(host, rank, stream, lines[:shown], at)

    def withhold(self) -> None:
        """Hold back the tracebacks of others from now on, however long the run takes to end."""
        with self._lock:
            self._is_failing = True

    def release(
        self, sources: Collection[Source] | None = None, alike: Collection[Source] = (), *, ended_well: bool = False
    ) -> frozenset[Source]:
        """Show what was held back from these sources, or from all; return those whose tracebacks are only in the logs.

        alike: sources with the same error; if it was shown for one of them, it is not shown again. ended_well: the run
        has succeeded, so what torchrun said of its exit barrier means nothing.
        """
        with self._lock:
            is_shown = self._first in alike
            shown = [source for source in self._held if sources is None or (source in sources and not is_shown)]
        for source in shown:
            if not (ended_well and source[1] is None):
                self._show_held(source)
        with self._lock:
            return frozenset(self._held)

    def _has_survived(self) -> bool:
        """Tell once whether the run continues after the first traceback."""
        with self._lock:
            has_survived = not self._is_failing and time.monotonic() - self._first_at > HOLD_S
            self._first = None if has_survived else self._first
            return has_survived

    def _divide(self, source: Source, lines: bytes) -> int:
        """Hold back what must not be shown yet; return how many bytes may be."""
        if source in self._held:
            self._hold(source, lines)
            return 0
        found = _EXIT_BARRIER.search(lines) if source[1] is None else None
        if found is None:
            found = _find_start(lines)
            if found is None or source == self._first:
                return len(lines)
            if self._first is None and not self._is_failing:
                self._first, self._first_at = source, time.monotonic()
                return len(lines)
        self._hold(source, lines[found.start() :])
        return found.start()

    def _hold(self, source: Source, lines: bytes) -> None:
        held = self._held.setdefault(source, bytearray())
        if len(held) < HELD_BYTES:
            held += lines
            held += b"launch: its further lines are only in the logs\n" if len(held) >= HELD_BYTES else b""

    def _show_held(self, source: Source) -> None:
        while True:
            with self._lock:
                lines = self._held.get(source)
                if not lines:  # what came meanwhile had to wait for what was held
                    self._held.pop(source, None)
                    return
                self._held[source] = bytearray()
            self._show(*source, STDERR, bytes(lines), 0.0)  # as only an object of --json would tell, which isn't held


def _find_start(lines: bytes) -> re.Match[bytes] | None:
    """Find where a traceback begins; a cheap test comes before the pattern, since some ranks print a lot."""
    return _START.search(lines) if any(clue in lines for clue in _CLUES) else None
