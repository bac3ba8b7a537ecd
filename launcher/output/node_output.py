"""Take the output of one node, write it to the node's log and hand it on to the screen.

All of that happens in the reader thread of that node's connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from launcher.clock import local_time, wall_clock
from launcher.output.display import prefix_lines, prefix_of
from launcher.output.lines import STDOUT, BarTurn, LineStream, LogLines
from launcher.output.log_writer import LogWriter
from launcher.wording import count

RHYTHM_LINES = 3
# Lines of `launch` itself, in the log of each host.
CODE_BORDER = "---- code {} ----"  # if it has sent the code
RESTART_BORDER = "---- restart {} ----"


class NodeOutput:
    """All output of one node, cut into lines for its log and the screen.

    Each line of the log begins with the time at which it came, by the clock of this machine. `feed` is called by the
    reader thread of the node's connection, and `finish` by the event loop, after which output that still comes is
    dropped.
    """

    def __init__(
        self,
        host: str,
        log: LogWriter | None,
        show: Callable[[str, int | None, int, bytes, float], None] | None,
        *,
        has_ranks: bool = True,
        bars: BarTurn | None = None,
        clock: Callable[[], float] = wall_clock,
    ) -> None:
        """bars: of all nodes; None: each rank's progress bar is shown."""
        self._has_ranks = has_ranks
        self._bars = bars
        self.first_rank = 0  # known once there is a plan
        self._host = host
        self._log = log
        self._show = show
        self._clock = clock
        self._streams: dict[tuple[int | None, int], LineStream] = {}
        self._lock = threading.Lock()  # `finish` comes from the loop, and on a bad end the reader may still be at it
        self._is_finished = False
        self._prefixes: dict[tuple[int | None, int, bool], bytes] = {}
        self._stamped_at, self._last_stamp = 0, b""  # in milliseconds
        self._missing_lines = 0  # in the log, since its disk did not respond
        self.has_lines = False
        self.heard_at = 0.0  # monotonic: when a rank wrote last, be it half a line
        self.longest_gap_s = 0.0  # between two pieces of its ranks' output
        self.has_rhythm = False  # a rank has printed so many lines that its gaps mean something

    def feed(self, local_rank: int | None, stream: int, data: bytes) -> None:
        """Take a piece of a rank's output, or of torchrun's if local_rank is None."""
        with self._lock:
            if self._is_finished:
                return
            if local_rank is not None:
                now = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now - self.heard_at if self.heard_at else 0.0)
                self.heard_at = now
            lines = self._streams.get((local_rank, stream))
            if lines is None:
                bars = self._bars if local_rank is not None else None
                rank = self.first_rank + (local_rank or 0)
                lines = self._streams[local_rank, stream] = LineStream(bars, rank)
            lines.heard_at = self._clock()
            for_log, for_screen = lines.feed(data)
            if local_rank is not None and not self.has_rhythm:
                lines.count += sum(piece.lines.count(b"\n") for piece in for_log)
                self.has_rhythm = lines.count >= RHYTHM_LINES
            self._emit(local_rank, stream, for_log, for_screen)

    def note(self, text: str) -> None:
        """Write a line of `launch` itself to the log."""
        with self._lock:
            self._write_log([self._own_line(text)])

    def finish(self) -> None:
        """Write and show the last lines that had no newline, and close the log."""
        with self._lock:
            self._is_finished = True
            for (local_rank, stream), lines in self._streams.items():
                self._emit(local_rank, stream, *lines.finish())
            if self._log is not None:
                for note in self._missing_note():
                    self._log.write(note, is_kept=True)
                self._log.close()

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a file that a rank left on the node; it is dropped if there is no log."""
        if self._log is not None:
            self._log.keep_file(name, content)

    def tail(self, local_rank: int | None, stream: int) -> bytes:
        """Return the last bytes of a rank's stream, or of torchrun's if local_rank is None."""
        lines = self._streams.get((local_rank, stream))
        return lines.tail if lines else b""

    def stream_heard_at(self, local_rank: int | None, stream: int) -> float:
        """Return when a rank last wrote to a stream (wall-clock seconds), or 0 if it never did."""
        lines = self._streams.get((local_rank, stream))
        return lines.heard_at if lines else 0.0

    def _prefix(self, rank: int | None, stream: int, *, is_whole: bool = True) -> bytes:
        prefix = self._prefixes.get((rank, stream, is_whole))
        if prefix is None:
            # So that both streams can be told apart, and that their bytes can be restored.
            mark = (b"" if stream == STDOUT else b"!") + (b" " if is_whole else b"~ ")
            prefix = self._prefixes[rank, stream, is_whole] = prefix_of(self._host, rank) + mark
        return prefix

    def _missing_note(self) -> list[memoryview]:
        text = f"---- {count(self._missing_lines, 'line')} missing here: the disk did not take them ----"
        return [self._own_line(text)] if self._missing_lines else []

    def _own_line(self, text: str) -> memoryview:
        """Return a line of `launch` itself for the log."""
        return prefix_lines(self._stamp(self._clock()) + self._prefix(None, STDOUT), f"{text}\n".encode())

    def _write_log(self, blocks: Sequence[memoryview]) -> None:
        """Append blocks of whole lines to the log, and count those that its disk did not take."""
        if self._log is None:
            return
        block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        if self._log.write(block, note=b"".join(self._missing_note())):
            self._missing_lines = 0
        else:
            self._missing_lines += sum(bytes(block).count(b"\n") for block in blocks)

    def _stamp(self, at: float) -> bytes:
        """Return the time that starts a line of the log, kept for the many blocks that a flood has per millisecond."""
        millis = int(at * 1000)
        if millis != self._stamped_at:
            self._stamped_at, self._last_stamp = millis, f"{local_time(at)} ".encode()
        return self._last_stamp

    def _emit(self, local_rank: int | None, stream: int, for_log: Sequence[LogLines], for_screen: bytes) -> None:
        at = self._clock()
        rank = None if local_rank is None or not self._has_ranks else self.first_rank + local_rank
        if for_log:
            self.has_lines = True
            if self._log is not None:
                stamp = self._stamp(at)
                self._write_log(
                    [
                        prefix_lines(stamp + self._prefix(rank, stream, is_whole=is_whole), lines)
                        for is_whole, lines in for_log
                    ]
                )
        if for_screen and self._show is not None:
            self._show(self._host, rank, stream, for_screen, at)
