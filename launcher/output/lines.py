"""Cut the stream of a rank into whole lines; progress bars become readable, and no UTF-8 character is split.

All work is done on blocks of whole lines with bytes.replace: eight million lines pass in about a second.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple

STDOUT, STDERR = 1, 2
LINE_BYTES = 64 << 10  # a line that is longer is cut, at the border of a character
TAIL_BYTES = 16 << 10  # what is kept of each stream for the report
SURVIVED_S = 60.0  # a rank that prints for so long after a traceback has survived it
PROGRESS_S = 1.0  # a progress bar is shown this often
BAR_GONE_S = 5.0  # after it, another rank's bar is shown
_STATES = re.compile(rb"\r*[^\r]+\r*|\r+")  # of a progress bar, with the carriage returns around each
_TRACEBACK = b"(most recent call last)"  # what rich colors apart from the word before it
_TRACEBACK_BYTES = 32 << 10  # that are kept of one: two hundred frames, and the first line of the error
_PREFIX_BYTES = 200  # before a traceback, in its first line


class LogLines(NamedTuple):
    """Lines for the log: of a stream as they are, or parts of one line of it, to each of which a newline was added."""

    is_whole: bool
    lines: bytes


class BarTurn:
    """Whose progress bar is shown now: that of the lowest rank that has one, since the ranks' bars are alike.

    All reader threads use it; if two ask at the same moment, one bar more is shown.
    """

    def __init__(
        self, is_shown: Callable[[int], bool] = lambda rank: True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """is_shown: whether the screen shows a rank at all."""
        self._is_shown = is_shown
        self._clock = clock
        self._last = (0, -math.inf)  # which rank's bar was shown, and when

    def take(self, rank: int) -> bool:
        """Tell whether the bar of a rank is shown now, and take down that it was."""
        now, (holder, at) = self._clock(), self._last
        wait_s = 0.0 if rank < holder else PROGRESS_S if rank == holder else BAR_GONE_S
        if now - at < wait_s or not self._is_shown(rank):
            return False
        self._last = (rank, now)
        return True

    def take_end(self, rank: int) -> bool:
        """Tell whether the last state of a rank's bar is shown: not while another rank's bar is."""
        return rank == self._last[0] or self.take(rank)


class LineStream:
    """One stream (stdout or stderr) of one rank, cut into whole lines.

    It keeps the start of a line until the rest has come, and the newest traceback and the last bytes for the report.
    """

    def __init__(self, bars: BarTurn | None = None, rank: int = 0) -> None:
        """bars: of all ranks; None: this stream's bar is shown whatever others show."""
        self._rest = b""
        self._follows_state = False  # the rest follows a state of a progress bar
        self._bars = bars or BarTurn()
        self._rank = rank
        self._last = b""  # bytes of all
        self._size = 0  # of all
        self._traceback = b""  # the beginning of the newest one, with what follows it
        self._traceback_place, self._traceback_at = 0, 0.0  # its first byte among all, and when it came
        self.count = 0  # of its first lines, as its feeder says
        self.heard_at = 0.0  # wall-clock: when its last bytes came, as its feeder says

    def feed(self, data: bytes) -> tuple[list[LogLines], bytes]:
        """Return the pieces for the log, and the lines for the screen, that `data` completes; each may be empty."""
        self._keep(data)
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if not end and len(data) > LINE_BYTES:
            end = _whole_characters(data)
        block, self._rest = data[:end], data[end:]
        if len(block) < LINE_BYTES and not block.strip(b"\r"):  # a bar that begins with \r: its first state follows
            self._rest = block + self._rest
            return [], b""
        if b"\r" in block or (self._follows_state and b"\n" in block):
            return self._split_progress(block)
        is_whole = block.endswith(b"\n")
        lines = block if is_whole else block + b"\n"
        return [LogLines(is_whole, lines)], lines

    def _keep(self, data: bytes) -> None:
        known = len(self._last)
        last = self._last + data
        found = last.rfind(_TRACEBACK, max(0, known - len(_TRACEBACK)))
        if found >= 0:
            start = max(last.rfind(b"\n", 0, found), last.rfind(b"\r", 0, found), found - _PREFIX_BYTES) + 1
            self._traceback_place, self._traceback_at = self._size - known + start, self.heard_at
            self._traceback = last[start : start + _TRACEBACK_BYTES]
        elif self._traceback:
            self._traceback += data[: _TRACEBACK_BYTES - len(self._traceback)]
        self._size += len(data)
        self._last = last[-TAIL_BYTES:]

    @property
    def tail(self) -> bytes:
        """The last bytes of all, after the newest traceback if that began earlier."""
        start = self._size - len(self._last)
        if not self._traceback or self._traceback_place >= start or self.heard_at - self._traceback_at > SURVIVED_S:
            return self._last
        gap = start - self._traceback_place - len(self._traceback)
        # A line that began in the gap must not look like an error, at the margin.
        return self._traceback + (b"    ..." + self._last if gap > 0 else self._last[-gap:])

    def finish(self) -> tuple[list[LogLines], bytes]:
        """Return the rest that never got a newline, for the log and for the screen."""
        rest, self._rest = self._rest, b""
        is_hidden = self._follows_state and not (rest.strip() and self._bars.take_end(self._rank))
        shown = b"" if is_hidden else rest.strip(b"\r").replace(b"\r", b"\n")
        return ([LogLines(False, _join(_STATES.findall(rest)))] if rest else []), shown + b"\n" if shown else b""

    def _split_progress(self, block: bytes) -> tuple[list[LogLines], bytes]:
        """Return the pieces for the log and the lines for the screen of a block with carriage returns.

        All states of a progress bar go to the log, and at most one in a second to the screen, if it is its turn.
        """
        *ended, unended = block.split(b"\n")
        log: list[LogLines] = []
        screen = []
        for line in ended:
            *states, last = _STATES.findall(line) or [b""]
            log += [LogLines(False, _join(states))] if states else []
            log.append(LogLines(True, last + b"\n"))
            if not self._ends_bar(line) or self._bars.take_end(self._rank):
                screen.append(_shown(line) or b"")
            self._follows_state = False
        if unended:
            log.append(LogLines(False, _join(_STATES.findall(unended))))
            self._follows_state = _is_state(unended)
        shown = _shown(unended)
        if shown is not None and self._bars.take(self._rank):
            screen.append(shown)
        return log, _join(screen)

    def _ends_bar(self, line: bytes) -> bool:
        """Tell whether a line is the last state of a progress bar; a program that clears it first writes a message."""
        before, _, last = line.rpartition(b"\r")
        follows_state = _is_state(before + b"\r") if before.strip(b"\r") else self._follows_state
        return follows_state and bool(last.strip())


def _is_state(piece: bytes) -> bool:
    """Tell whether a piece without newline ends with a state of a progress bar, which isn't cleared."""
    return piece.endswith(b"\r") and bool((_shown(piece) or b"").strip())


def _shown(line: bytes) -> bytes | None:
    """Return the last state of a progress bar, without its carriage returns."""
    return next((state for state in reversed(line.split(b"\r")) if state), None)


def _join(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _whole_characters(data: bytes) -> int:
    """Return the length of the longest start of `data` that doesn't end inside a UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte says how long its character is
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)
