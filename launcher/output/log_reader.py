"""The logs of a run, while it runs or later: all of it in the order of time, or exactly what one rank wrote.

Lines are printed as they are in their log, as the screen of the run shows them, or byte for byte.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from launcher.escapes import clean
from launcher.output.display import PrefixDisplay, json_lines
from launcher.output.lines import STDERR, STDOUT, BarTurn, LineStream
from launcher.output.log_writer import TRANSCRIPT
from launcher.output.node_output import RESTART_BORDER
from launcher.output.output_streams import OutputStreams

STAMP_BYTES = len("2026-11-20 09:12:33.123 ")
_LINE = re.compile(rb"\[(?P<place>[^\]]*)\](?P<stderr>!?)(?P<piece>~?) (?P<text>.*)", re.DOTALL)
_STAMP = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")
_BORDER = re.compile(RESTART_BORDER.format(r"(\d+)").encode())
_PIECE_BYTES = 1 << 20
_MOST_LINE_BYTES = 16 << 20
LOOK_S = 0.2  # how often a log that grows is read


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log, without the newline."""

    stamp: str  # local time of the launch host; empty if the line has none
    host: str | None  # None: a message of launch
    rank: int | None  # None: not of a rank
    is_stderr: bool
    is_whole: bool  # it ended with a newline
    text: bytes
    attempt: int
    raw: bytes  # the whole line, as it stands in the log

    @property
    def content(self) -> bytes:
        """What was written: the text, and the newline if it had one."""
        return self.text + b"\n" if self.is_whole else self.text


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines to read; None: all."""

    node: int | None = None  # node rank
    rank: int | None = None
    attempt: int | None = None
    since: str | None = None  # a stamp

    def has(self, line: LogLine) -> bool:
        """Tell whether this line is one of them."""
        return (
            (self.rank is None or line.rank == self.rank)
            and (self.attempt is None or (line.attempt == self.attempt and line.host is not None))
            and (self.since is None or line.stamp >= self.since)
        )


class LogFile:
    """One log, read as far as it has been written: `read` returns what has come since."""

    def __init__(
        self, path: Path, hosts: Iterable[str], tail_bytes: int | None = None, since: str | None = None
    ) -> None:
        """hosts: those of the run; the name of one may have a colon in it, as an IPv6 address does.

        tail_bytes: begin with the whole lines in so many bytes before the end; since: begin a little before this stamp.
        None: begin with the first line.
        """
        self._path = path
        self._is_transcript = path.name == TRANSCRIPT
        self._hosts = frozenset(hosts)
        self._tail_bytes = tail_bytes
        self._since = since
        self._file: BinaryIO | None = None
        self._rest = b""
        self._attempt = 0

    def read(self) -> Iterator[LogLine]:
        """Yield the lines that are complete by now."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except OSError:
                return
            if self._tail_bytes is not None:
                self._file.seek(max(0, self._path.stat().st_size - self._tail_bytes))
                if self._file.tell():
                    self._file.readline()
            elif self._since is not None:
                _seek_stamp(self._file, self._path.stat().st_size, self._since.encode())
        while data := self._file.read(_PIECE_BYTES):
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from map(self._parse, lines)
            if len(self._rest) > _MOST_LINE_BYTES:  # `launch` writes none that long
                yield self._parse(self._rest)
                self._rest = b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _parse(self, line: bytes) -> LogLine:
        stamp, text = "", line
        if _STAMP.match(line):  # a traceback of `launch` itself has none
            stamp, text = line[: STAMP_BYTES - 1].decode("ascii"), line[STAMP_BYTES:]
        found = None if self._is_transcript else _LINE.fullmatch(text)
        if found is None:
            return LogLine(stamp, None, None, True, True, text, self._attempt, line)
        host, rank = self._split(found["place"].decode("utf-8", "replace"))
        border = _BORDER.fullmatch(found["text"]) if rank is None and not found["stderr"] else None
        if border is not None:
            self._attempt = int(border[1])
        return LogLine(stamp, host, rank, bool(found["stderr"]), not found["piece"], found["text"], self._attempt, line)

    def _split(self, place: str) -> tuple[str, int | None]:
        host, colon, rank = place.rpartition(":")
        is_rank = colon and rank.isdecimal() and place not in self._hosts
        return (host, int(rank)) if is_rank else (place, None)


class RunLogs:
    """The logs of a run, merged by time."""

    def __init__(
        self, folder: Path, hosts: Iterable[str], choice: Choice, tail_bytes: int | None = None
    ) -> None:  # fmt: skip
        """tail_bytes: begin so many bytes before the end of each log; None: with its first line."""
        self._tail_bytes = tail_bytes
        self._folder = folder
        self._hosts = frozenset(hosts)
        self._choice = choice
        self._files: dict[Path, LogFile] = {}

    def read(self) -> Iterator[LogLine]:
        """Yield what has come since the last call, in the order of time."""
        for path in self._find():
            if path not in self._files:
                since = self._choice.since if self._choice.attempt is None else None  # all borders must be seen
                self._files[path] = LogFile(path, self._hosts, self._tail_bytes, since)
        self._tail_bytes = None  # a log that appears later is read from its start
        lines = merge(*(file.read() for file in self._files.values()), key=attrgetter("stamp"))
        return filter(self._choice.has, lines)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def _find(self) -> list[Path]:
        if self._choice.node is not None:
            return [self._folder / f"node_{self._choice.node}.log"]
        paths = sorted(self._folder.glob("node_*.log"))
        return paths if self._choice.rank is not None else [self._folder / TRANSCRIPT, *paths]


def _seek_stamp(file: BinaryIO, size: int, stamp: bytes) -> None:
    """Go to the start of a line, at most a megabyte before the first one with this stamp: a log may have days."""
    low, high = 0, size
    while high - low > _PIECE_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        line = file.readline(STAMP_BYTES)
        if _STAMP.match(line) and line[: STAMP_BYTES - 1] < stamp:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()


def find_since(ago_s: float, utc_offset: str, now: datetime) -> str:
    """Return the stamp of a time so many seconds ago; utc_offset: of the stamps, such as `+01:00`; now: in UTC."""
    sign = -1 if utc_offset.startswith("-") else 1
    hours, _, minutes = utc_offset.lstrip("+-").partition(":")
    offset = sign * timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    at = now + offset - timedelta(seconds=ago_s)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


Form = Callable[[LogLine], tuple[int, bytes]]  # the stream to write to, and what


def as_logged(line: LogLine) -> tuple[int, bytes]:
    """Return a line as it stands in its log."""
    return STDOUT, line.raw + b"\n"


def as_written(line: LogLine) -> tuple[int, bytes]:
    """Return what a rank wrote, without a newline if it had none, for the stream to which it wrote."""
    return STDERR if line.is_stderr else STDOUT, line.content


def as_objects(utc_offset: str) -> Form:
    """Return what makes an object of --json of a line, with a message of `launch` as it is; utc_offset: of stamps."""

    def show(line: LogLine) -> tuple[int, bytes]:
        if line.host is None:
            return STDERR, line.text + b"\n"
        at, stream = line.stamp.replace(" ", "T") + utc_offset, STDERR if line.is_stderr else STDOUT
        return STDOUT, json_lines(at, line.host, line.rank, stream, line.text + b"\n")

    return show


def as_shown(streams: OutputStreams, hosts: Iterable[str]) -> Form:
    """Return what shows the lines of a run as the terminal where it was started would."""
    display, bars = PrefixDisplay(list(dict.fromkeys(hosts)), streams), BarTurn()
    ranks: dict[tuple[str | None, int, bool], LineStream] = {}

    def show(line: LogLine) -> tuple[int, bytes]:
        fd, shown = STDERR if line.is_stderr else STDOUT, line.text + b"\n"
        if line.rank is not None:
            stream = line.host, line.rank, line.is_stderr
            if stream not in ranks:
                ranks[stream] = LineStream(bars, line.rank)
            # A part of a line, which may be the last one, is shown at once.
            is_part = not line.is_whole and b"\r" not in line.text
            _, shown = ranks[stream].feed(shown if is_part else line.content)
        return fd, display.render(line.host, line.rank, fd, shown) if shown and line.host is not None else shown

    return show


class LogPrinter:
    """Writes lines to stdout and stderr; a closed pipe, as behind `| head`, raises BrokenPipeError."""

    def __init__(self, streams: OutputStreams, form: Form) -> None:
        self._buffers = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
        self._streams = streams
        self._form = form
        self._last_fd = STDOUT
        self.has_printed = False

    def print(self, line: LogLine) -> None:
        """Write a line in the form of this printer."""
        fd, data = self._form(line)
        if fd != self._last_fd:  # both may lead to the same terminal
            self._buffers[self._last_fd].flush()
            self._last_fd = fd
        self.has_printed = True
        self._buffers[fd].write(clean(data) if fd in self._streams.terminals else data)

    def flush(self) -> None:
        """Write what is still in memory."""
        for stream in self._buffers.values():
            stream.flush()


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
