"""Print the lines of a run's logs: unchanged, as the screen of the run shows them, or byte for byte."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from launcher.clock import wall_clock
from launcher.escapes import clean
from launcher.output.display import PrefixDisplay
from launcher.output.lines import STDERR, STDOUT, BarTurn, is_state
from launcher.output.log_reader import LogLine, RunLogs
from launcher.output.output_streams import OutputStreams

LOOK_S = 0.2


class LogPrinter:
    """Writes lines to stdout and stderr; a closed pipe, as behind `| head`, raises BrokenPipeError."""

    def __init__(self, streams: OutputStreams) -> None:
        self._buffers = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
        self._streams = streams
        self._last_fd = STDOUT

    def print(self, line: LogLine) -> None:
        """Write a line as it stands in its log."""
        self._write(STDOUT, line.raw + b"\n")

    def flush(self) -> None:
        """Write what is still in memory."""
        for stream in self._buffers.values():
            stream.flush()

    def _write(self, fd: int, data: bytes) -> None:
        if fd != self._last_fd:  # both may lead to the same terminal
            self._buffers[self._last_fd].flush()
            self._last_fd = fd
        self._buffers[fd].write(clean(data) if fd in self._streams.terminals else data)


class ExactPrinter(LogPrinter):
    """Writes what a rank wrote, to the stream to which it wrote."""

    def print(self, line: LogLine) -> None:
        """Write the bytes of a line, without a newline if it had none."""
        self._write(STDERR if line.is_stderr else STDOUT, line.content)


class ScreenPrinter(LogPrinter):
    """Shows a run as it would have been shown on the terminal where it was started."""

    def __init__(self, streams: OutputStreams, hosts: Iterable[str]) -> None:
        super().__init__(streams)
        names = list(dict.fromkeys(hosts))
        self._bars = BarTurn()
        self._with_state: set[tuple[int, bool]] = set()  # streams whose last piece was a state of a progress bar
        self._displays = {
            fd: PrefixDisplay(names, is_terminal=fd in streams.terminals, with_color=streams.has_color(fd))
            for fd in self._buffers
        }

    def print(self, line: LogLine) -> None:
        """Write a line with its prefix, or a message of `launch` as it is."""
        fd = STDERR if line.is_stderr else STDOUT
        if line.rank is not None and not self._is_turn(line, line.rank):
            return
        shown = line.text.strip(b"\r") + b"\n"  # of the states of a progress bar
        if line.host is not None:
            shown = self._displays[fd].render(line.host, line.rank, fd, shown, wall_clock())
        self._write(fd, shown)

    def _is_turn(self, line: LogLine, rank: int) -> bool:
        """Tell whether a line is none of a progress bar, or one that is shown now."""
        stream = (rank, line.is_stderr)
        follows_state = stream in self._with_state
        self._with_state.discard(stream)
        if not line.is_whole and b"\r" in line.text:
            if is_state(line.text):
                self._with_state.add(stream)
            return self._bars.take(rank)
        if follows_state and line.text.strip():
            return self._bars.take_end(rank)
        return line.is_whole or not follows_state


def follow(logs: RunLogs, printer: LogPrinter, is_alive: Callable[[], bool]) -> None:
    """Print what comes until the run has ended, and all that it has written by then."""
    while True:
        is_last = not is_alive()
        for line in logs.read():
            printer.print(line)
        printer.flush()
        if is_last:
            return
        time.sleep(LOOK_S)
