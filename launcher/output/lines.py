"""Output on the launch host: a prefix on every line, one file per node, and the terminal's own thread.

All work is done on blocks of whole lines with bytes.replace: eight million lines pass in about a second.
A node's blocks come from that node's reader thread, so a slow disk holds up that node alone; the terminal has a
bounded queue, so Ctrl-S or a pager that is not read holds up nobody.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

from launcher.concurrency import start_thread
from launcher.escapes import clean
from launcher.private_files import make_private, open_private

STDOUT, STDERR = 1, 2
QUEUE_BYTES = 8 << 20
LINE_BYTES = 64 << 10  # a line that is longer is cut, at the border of a character
TAIL_BYTES = 16 << 10  # what is kept of each stream for the report
PROGRESS_S = 1.0  # a progress bar is shown this often
_PATIENCE_S = 1.0
_PIECE_BYTES = 64 << 10  # small enough that a reader who moves is seen to
_FAREWELL_S = 5.0
_OWN_FAREWELL_S = 60.0

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_LEFT_BY_JSON = re.compile("[\x7f-\x9f]")  # controls that json.dumps does not escape


class Terminal:
    """Writes to stdout and stderr from a thread of its own."""

    def __init__(self, *, is_terminal: bool, patience_s: float | None = None) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._own_waiting = 0  # bytes of our own words that nobody has read yet
        self._queued_bytes = 0
        self._dropped_lines = 0
        self._is_terminal = is_terminal
        # A file or pipe that moves is waited for; a person can't read what a terminal can't keep up with.
        self._patience_s = patience_s if patience_s is not None else (0.0 if is_terminal else _PATIENCE_S)
        self._moved_at = time.monotonic()
        self._closed_fds: set[int] = set()
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = start_thread(self._write_all, "terminal", self._break)

    def put(self, fd: int, block: bytes) -> None:
        """Queue whole lines; dropped and counted once the terminal stands still and the queue is full."""
        with self._changed:
            while self._queued_bytes >= QUEUE_BYTES and not self._is_stuck():
                self._changed.wait(0.1)
            if self._queued_bytes >= QUEUE_BYTES:
                self._dropped_lines += block.count(b"\n")
                return
            self._append(fd, block)

    def say(self, text: str, fd: int) -> None:
        """Queue words of our own, which are never dropped; what a node said in them is cleaned."""
        with self._changed:
            self._append(fd, clean(text.encode("utf-8", "replace")) + b"\n")
            self._own_waiting = self._queued_bytes  # they come last

    def close(self) -> None:
        """Wait until all is written; give up on a file or pipe that stands still, and say how much it missed."""
        with self._changed:
            self._is_closing = True
            self._moved_at = time.monotonic()
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - self._moved_at > self._farewell_s():
                text = f"launch: {self._queued_bytes} bytes of output were not read by anybody\n"
                with contextlib.suppress(OSError):
                    os.write(STDERR, text.encode())
                return

    def _break(self, error: Exception) -> None:
        """Nothing is written any more; the run goes on, and what comes is dropped."""
        self._patience_s = 0.0
        text = f"launch: printing failed ({error!r}); the run goes on\n"
        with contextlib.suppress(OSError):
            os.write(STDERR, text.encode())

    def _farewell_s(self) -> float:
        """How long a reader may stand still at the end: our own words, the cause above all, are worth a wait."""
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
                self._write(STDERR, f"launch: {dropped} lines not shown here, all are in the logs\n".encode())
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
                view = view[_write_some(fd, view) :]
                self._moved_at = time.monotonic()
        except OSError as error:
            # The pager was quit, the terminal closed, or the disk is full; the run goes on.
            self._closed_fds.add(fd)
            if fd == STDOUT:
                text = f"launch: can't write our output any more ({error.strerror}); the run goes on\n"
                self._write(STDERR, text.encode())


def _write_some(fd: int, view: memoryview) -> int:
    try:
        return os.write(fd, view[:_PIECE_BYTES])
    except BlockingIOError:  # another program has made the terminal non-blocking
        select.select([], [fd], [])
        return 0


class Screen(Protocol):
    """Where the words of a run go."""

    def say(self, text: str) -> None:
        """Say words of ours, on stderr."""

    def show(self, text: str) -> None:
        """Put a result of ours on stdout."""

    def emit(self, event: str, **values: object) -> None:
        """With --json: put one object on stdout."""


class Display(Protocol):
    """Turns whole lines of one stream into what the terminal shows."""

    def render(self, host: str, rank: int | None, stream: int, lines: bytes) -> bytes:
        """Return the block to write; `lines` ends with a newline."""


class PrefixDisplay:
    """`[node2:5] line`, coloured by node on a terminal."""

    def __init__(self, hosts: Sequence[str], *, is_terminal: bool, with_colour: bool) -> None:
        self._is_terminal = is_terminal
        self._colours = {host: _COLOURS[index % len(_COLOURS)] for index, host in enumerate(hosts)}
        self._with_colour = with_colour

    def render(self, host: str, rank: int | None, stream: int, lines: bytes) -> bytes:
        prefix = prefix_of(host, rank)
        if self._with_colour:
            prefix = b"\x1b[%dm%s\x1b[0m" % (self._colours[host], prefix)
        if self._is_terminal:
            lines = clean(lines)
        return prefix_lines(prefix + b" ", lines)


class JsonDisplay:
    """One JSON object per line, for a program that reads us."""

    def render(self, host: str, rank: int | None, stream: int, lines: bytes) -> bytes:
        common = {
            "event": "line",
            "host": host,
            "rank": rank,
            "stream": "stdout" if stream == STDOUT else "stderr",
        }
        texts = lines.decode("utf-8", "replace").split("\n")[:-1]
        block = "".join(json.dumps({**common, "text": text}, ensure_ascii=False) + "\n" for text in texts)
        return _LEFT_BY_JSON.sub(lambda control: f"\\u{ord(control[0]):04x}", block).encode()


def prefix_of(host: str, rank: int | None) -> bytes:
    """Return `[host:rank]`, or `[host]` for what no rank said."""
    return f"[{host}]".encode() if rank is None else f"[{host}:{rank}]".encode()


def prefix_lines(prefix: bytes, lines: bytes) -> bytes:
    """Put `prefix` in front of every line of a block that ends with a newline."""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


class LineStream:
    """Cuts one stream of one rank into whole lines, and makes progress bars readable."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest = b""
        self._clock = clock
        self._progress_at = -PROGRESS_S
        self.tail = b""

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
        """Return the last line, which had no newline, with one."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return rest.replace(b"\r", b"\n") + b"\n" if rest else b""

    def _split_progress(self, block: bytes) -> tuple[bytes, bytes]:
        """A carriage return draws over the line: all states go to the log, the last of each second to the screen."""
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
    """How much of `data` does not end inside a UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte says how long its character is
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)


class NodeLog:
    """A node's full log; a disk that is full is said once, and the run goes on."""

    def __init__(self, path: Path, complain: Callable[[Path, OSError], None]) -> None:
        self._path = path
        self._complain = complain
        self._file: FileIO | None = None

    def write(self, block: bytes) -> None:
        """Append whole lines."""
        try:
            if self._file is None:
                self._file = FileIO(self._path, "ab", opener=open_private)
            view = memoryview(block)
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:  # once there is room again the log goes on, with a gap
            self._complain(self._path, error)

    def keep_file(self, name: str, content: bytes) -> None:
        """Put a file of the node's ranks beside the log: files/node_0/NAME."""
        path = self._path.parent / "files" / self._path.stem / name
        try:
            make_private(path.parent, self._path.parent.parent, exist_ok=True)
            part = path.with_name(f".{name}.part")  # a name that no node can give
            with open(part, "wb", opener=open_private) as file:
                file.write(content)
            part.replace(path)  # whole, though the run's end may not wait for it
        except OSError as error:
            self._complain(path, error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class NodeOutput:
    """All output of one node; fed by that node's reader thread."""

    def __init__(
        self,
        host: str,
        log: NodeLog | None,
        show: Callable[[str, int | None, int, bytes], None] | None,
        *,
        has_ranks: bool = True,
    ) -> None:
        self._has_ranks = has_ranks
        self.first_rank = 0  # known once there is a plan
        self._host = host
        self._log = log
        self._show = show
        self._streams: dict[tuple[int | None, int], LineStream] = {}
        self._lock = threading.Lock()  # `finish` comes from the loop, and on a bad end the reader may still be at it
        self._is_finished = False
        self.has_lines = False
        self.heard_at = 0.0  # monotonic: when a rank wrote last, be it half a line

    def feed(self, local_rank: int | None, stream: int, data: bytes) -> None:
        """Take a piece of a rank's output (None: torchrun's own)."""
        with self._lock:
            if self._is_finished:
                return
            if local_rank is not None:
                self.heard_at = time.monotonic()
            lines = self._streams.get((local_rank, stream))
            if lines is None:
                lines = self._streams[local_rank, stream] = LineStream()
            self._emit(local_rank, stream, *lines.feed(data))

    def finish(self) -> None:
        """Emit what had no newline at its end, and close the log."""
        with self._lock:
            self._is_finished = True
            for (local_rank, stream), lines in self._streams.items():
                rest = lines.finish()
                self._emit(local_rank, stream, rest, rest)
            if self._log is not None:
                self._log.close()

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a file that a rank left for us; without a log there is no place for it."""
        if self._log is not None:
            self._log.keep_file(name, content)

    def tail(self, local_rank: int | None, stream: int) -> bytes:
        """Return the last bytes of a stream."""
        lines = self._streams.get((local_rank, stream))
        return lines.tail if lines else b""

    def _emit(self, local_rank: int | None, stream: int, for_log: bytes, for_screen: bytes) -> None:
        rank = None if local_rank is None or not self._has_ranks else self.first_rank + local_rank
        if for_log:
            self.has_lines = True
            if self._log is not None:
                mark = b" " if stream == STDOUT else b"! "  # so that a log of both can be told apart
                self._log.write(prefix_lines(prefix_of(self._host, rank) + mark, for_log))
        if for_screen and self._show is not None:
            self._show(self._host, rank, stream, for_screen)
