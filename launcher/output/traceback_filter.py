"""Keep tracebacks that are only consequences of another one off the screen, so that they don't bury the cause.

A rank that fails takes a second to exit; meanwhile its peers, which lost it, print pages. The logs get everything.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from launcher.concurrency import start_timer
from launcher.output.lines import STDERR

HOLD_S = 5.0  # a run that continues for this long after a traceback has survived it
HELD_BYTES = 16 << 20  # of all ranks together

# How a report of an error begins: Python's, also behind a progress bar, a SyntaxError's, NCCL's, and those of C++.
_CLUES = (b"Traceback (", b'  File "', b":[E", b"terminate called", b"Fatal Python error")
_START = re.compile(
    rb"^(?:[^\n]{0,200}?Traceback \(most recent call last\)"
    rb'|  File "[^"\n]+", line \d+$|\[rank\d+\]:\[E|terminate called after|Fatal Python error: )',
    re.MULTILINE,
)

Show = Callable[[str, int | None, int, bytes, float], None]
Source = tuple[str, int | None]  # a host and a rank, None for torchrun


@dataclass(slots=True)
class _Held:
    at: float  # when the last of it came
    blocks: list[bytes] = field(default_factory=list)
    dropped_lines: int = 0


class TracebackFilter:
    """Passes the output of ranks on to the screen, except for tracebacks that may only be consequences of another one.

    The first traceback is shown as it comes. While the run may be about to fail, the tracebacks of other ranks are held
    back, and so is what those ranks then print on stderr; if the run continues, all of that is shown a moment later.
    Once `withhold` was called the run is failing, and it is shown only if `release` names its source.

    The lines of one stream keep their order. `take` is called by all reader threads and a timer's, the rest by the
    event loop; nobody holds the lock while something is shown, since a terminal may be slow.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._first: Source | None = None  # whose traceback is shown as it comes
        self._turn = 0  # of the first tracebacks: a timer is for one of them
        self._held: dict[Source, _Held] = {}
        self._held_bytes = 0
        self._is_failing = False

    def take(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        """Take whole lines of one stream; at: when they came (wall-clock seconds)."""
        shown = len(lines)
        if stream == STDERR:
            with self._lock:
                turn = self._turn
                shown = self._divide((host, rank), lines, at)
                has_begun, turn = self._turn > turn, self._turn
            if has_begun:
                start_timer(HOLD_S, lambda: self._give_up(turn), lambda error: self._give_up(turn))
        if shown:
            self._show(host, rank, stream, lines[:shown], at)

    def withhold(self) -> None:
        """Hold back the tracebacks of others from now on, however long the run takes to end."""
        with self._lock:
            self._is_failing = True

    def release(self, sources: Collection[Source] | None = None, alike: Collection[Source] = ()) -> frozenset[Source]:
        """Show what was held back from these sources, or from all; return those whose tracebacks are only in the logs.

        alike: sources with the same error; if it was shown for one of them, it is not shown again.
        """
        with self._lock:
            is_shown = self._first in alike
            shown = [source for source in self._held if sources is None or (source in sources and not is_shown)]
        for source in shown:
            self._show_held(source)
        with self._lock:
            return frozenset(self._held)

    def _divide(self, source: Source, lines: bytes, at: float) -> int:
        """Hold back what must not be shown yet; return how many bytes may be."""
        if source in self._held:
            self._hold(source, lines, at)
            return 0
        start = _find_start(lines)
        if start is None or source == self._first:
            return len(lines)
        if self._first is None and not self._is_failing:
            self._first = source
            self._turn += 1
            return len(lines)
        self._hold(source, lines[start:], at)
        return start

    def _hold(self, source: Source, lines: bytes, at: float) -> None:
        held = self._held.setdefault(source, _Held(at))
        held.at = at
        if self._held_bytes + len(lines) > HELD_BYTES:
            held.dropped_lines += lines.count(b"\n")
            return
        self._held_bytes += len(lines)
        held.blocks.append(lines)

    def _give_up(self, turn: int) -> None:
        """Show all that was held back: the run has survived the first traceback."""
        with self._lock:
            if self._is_failing or turn != self._turn:
                return
            self._first = None
        self.release()

    def _show_held(self, source: Source) -> None:
        while True:
            with self._lock:
                held = self._held.get(source, _Held(0.0))
                blocks, dropped_lines = held.blocks, held.dropped_lines
                if not blocks and not dropped_lines:  # what came meanwhile had to wait for what was held
                    self._held.pop(source, None)
                    return
                held.blocks, held.dropped_lines = [], 0
                self._held_bytes -= sum(map(len, blocks))
            if dropped_lines:
                blocks.append(f"launch: {dropped_lines} lines not shown here; the logs have all of them\n".encode())
            self._show(*source, STDERR, b"".join(blocks), held.at)


def _find_start(lines: bytes) -> int | None:
    """Return where a traceback begins; a cheap test comes before the pattern, since some ranks print a lot."""
    if not any(clue in lines for clue in _CLUES):
        return None
    found = _START.search(lines)
    return found.start() if found else None
