"""Take the output of one node, write it to the node's log and hand it on to the screen.

All of that happens in the reader thread of that node's connection; the disk has a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

from launcher.clock import local_time, wall_clock
from launcher.output.disk_space import DiskSpace
from launcher.output.disk_writer import DiskWriter, disk_stalled
from launcher.output.display import prefix_lines, prefix_of
from launcher.output.lines import STDERR, STDOUT, BarTurn, LineStream, Piece
from launcher.output.live_output import LiveOutput
from launcher.output.torchrun_exit_noise import TorchrunExitNoise
from launcher.private_files import make_private, open_private
from launcher.wording import count

RHYTHM_LINES = 3
CODE_BORDER = "---- code {} ----"  # the same, if launch has sent the code
RESTART_BORDER = "---- restart {} ----"  # a line of `launch` itself, in the log of each host


class NodeLog:
    """The log file of a node, and the files that its ranks left; a write error goes to `complain` only."""

    def __init__(self, path: Path, complain: Callable[[Path, OSError], None], files: Path) -> None:
        """files: the directory for the files of its ranks."""
        self._path = path
        self._files = files
        self._complain = complain
        self._file: FileIO | None = None

    def write(self, block: bytes | memoryview, *, note: bytes = b"", is_kept: bool = False) -> bool:
        """Append whole lines; return False if the disk doesn't take them.

        note: what comes before them; is_kept: they wait for the disk in any case.
        """
        try:
            if self._file is None:
                self._file = FileIO(self._path, "ab", opener=open_private)
            view = memoryview(note + block if note else block)
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:  # once there is room again the log continues, with a gap
            self._complain(self._path, error)
            return False
        return True

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a file that a rank left on the node beside the log, such as files/node_0/NAME."""
        path = self._files / name
        part = path.with_name(f".{name}.part")  # a name that no node can give
        try:
            make_private(path.parent, self._path.parent.parent, exist_ok=True)
            with open(part, "wb", opener=open_private) as file:
                file.write(content)
            part.replace(path)  # whole, though the run's end may not wait for it
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            self._complain(path, error)

    def close(self) -> None:
        """Close the file; a network file system may report only now that it was full."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._complain(self._path, error)


class DeferredLog(NodeLog):
    """A log whose disk has a thread of its own; what a disk that hangs, or is almost full, can't take is dropped."""

    def __init__(
        self, path: Path, complain: Callable[[Path, OSError], None], files: Path, disk: DiskWriter, space: DiskSpace,
        live: LiveOutput | None = None,
    ) -> None:  # fmt: skip
        """space: how much of the disk must stay free; live: gets what the disk doesn't take."""
        super().__init__(path, complain, files)
        self._disk = disk
        self._space = space
        self._live = live

    def write(self, block: bytes | memoryview, *, note: bytes = b"", is_kept: bool = False) -> bool:
        """Append whole lines; return False if they are dropped since the disk does not respond, or is almost full.

        note: what comes before them; is_kept: they wait for the disk in any case.
        """
        if not is_kept and not self._space.has_room():
            self._complain(self._path, self._space.describe())
            self._show(block)
            return False
        is_queued = self._put(self._path, partial(self._write_now, block, note), 0 if is_kept else len(block))
        if not is_queued:
            self._show(block)
        return is_queued

    def _write_now(self, block: bytes | memoryview, note: bytes) -> None:
        if not super().write(block, note=note):
            self._show(block)

    def _show(self, block: bytes | memoryview) -> None:
        if self._live is not None:
            self._live.write(block)

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a file that a rank left on the node beside the log."""
        self._put(self._files / name, partial(super().keep_file, name, content), len(content))

    def close(self) -> None:
        """Close the file once all is written."""
        self._disk.put(super().close)

    def _put(self, path: Path, work: Callable[[], object], size: int) -> bool:
        is_queued = self._disk.put(work, size)
        if not is_queued:
            self._complain(path, disk_stalled())
        return is_queued


class NodeOutput:
    """All output of one node, cut into lines for its log and the screen.

    Each line of the log begins with the time at which it came, by the clock of this machine. `feed` is called by the
    reader thread of the node's connection, and `finish` by the event loop, after which output that still comes is
    dropped.
    """

    def __init__(
        self,
        host: str,
        log: NodeLog | None,
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
        self._exit_noise = TorchrunExitNoise()
        self._held_at = 0.0  # when the last of that came
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

    def finish(self, *, ended_well: bool = False) -> None:
        """Write and show the last lines that had no newline, and close the log.

        ended_well: what was held back stays off the screen.
        """
        with self._lock:
            self._is_finished = True
            for (local_rank, stream), lines in self._streams.items():
                self._emit(local_rank, stream, *lines.finish())
            held = self._exit_noise.release()
            if held and not ended_well and self._show is not None:
                self._show(self._host, None, STDERR, held, self._held_at)
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

    def _emit(self, local_rank: int | None, stream: int, for_log: Sequence[Piece], for_screen: bytes) -> None:
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
        if local_rank is None and stream == STDERR:
            taken = for_screen
            for_screen = self._exit_noise.hold(taken)
            self._held_at = at if for_screen != taken else self._held_at
        if for_screen and self._show is not None:
            self._show(self._host, rank, stream, for_screen, at)
