"""A line on a terminal that shows the progress of the training."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

DRAW_EVERY_S = 0.1
# The rate covers the last ten seconds or more, so the first steps, which compile and warm up, soon don't count.
DRAWINGS_FOR_RATE = 100
DEFAULT_COLUMNS = 80


class Progress:
    """Show steps done, their rate and the time left, redrawn in place; silent if `stream` isn't a terminal.

    It uses no colors and no escape sequences, only carriage returns.
    """

    def __init__(
        self, total_steps: int, stream: TextIO, *, first_step: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total_steps
        self._stream: TextIO | None = stream if stream.isatty() else None
        self._clock = clock
        self._drawn: deque[tuple[float, int]] = deque([(clock(), first_step)], maxlen=DRAWINGS_FOR_RATE)
        self._width = 0

    def update(self, step: int, text: str = "") -> None:
        """Show that `step` is done; `text` is appended to the line."""
        now = self._clock()
        if self._stream is None:
            return
        if now - self._drawn[-1][0] < DRAW_EVERY_S and step < self._total:
            return
        before, first = self._drawn[0]
        self._drawn.append((now, step))
        rate = (step - first) / (now - before) if now > before else 0.0
        parts = [f"step {step}/{self._total} ({step / max(1, self._total):.0%})"]
        if rate > 0:
            parts += [rate_text(rate), f"{duration((self._total - step) / rate)} left"]
        self._draw(", ".join([*parts, *filter(None, [text])]))

    def clear(self) -> None:
        """Erase the line, so that another one can be printed."""
        self._draw("")

    def close(self) -> None:
        """Erase the line, and draw no more."""
        self.clear()
        self._stream = None

    def _draw(self, line: str) -> None:
        if self._stream is None or not (line or self._width):
            return
        line = line[: self._columns() - 1]  # a full line would wrap, and \r would return to its second half
        try:
            # Spaces overwrite the rest of a longer previous line; the cursor ends after the text.
            self._stream.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
            self._stream.flush()
        except OSError:  # the terminal was closed
            self._stream = None
        self._width = len(line)

    def _columns(self) -> int:
        assert self._stream is not None
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_COLUMNS
        except OSError:
            return DEFAULT_COLUMNS


def rate_text(rate: float) -> str:
    """Return `12.3 steps/s`, or `2.5 s a step` for slow steps."""
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s a step"


def duration(seconds: float) -> str:
    """Return `12 s`, `12 min 31 s` or `3 h 02 min`, as `launch` does; the trainer can't import its code."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
