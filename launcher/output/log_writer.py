"""The log files of a run, as they are written: one for each node, and launch.log for what `launch` itself says.

The thread of their disk writes them. What a disk that hangs doesn't take is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path

from launcher.clock import local_time, wall_clock
from launcher.escapes import clean
from launcher.output.lines import STDERR, STDOUT
from launcher.output.write_queue import WriteQueue, disk_stalled
from launcher.private_files import make_private, open_private
from launcher.wording import size

TRANSCRIPT = "launch.log"
FEW_BYTES = 2_000_000_000  # on the disk of the logs


def warn_of_little(folder: Path, host: str) -> list[str]:
    """Return a line if the disk of the logs may soon be full: that of a home directory, which others use as well."""
    try:
        found = os.statvfs(folder)
    except OSError:  # which `complain` hears as well, from the first write
        return []
    free = found.f_bavail * found.f_frsize
    if free > FEW_BYTES:
        return []
    text = f"{host}, which controls the run, has {size(free)} free in {folder}"
    return [f"launch: {text}; on a full disk the logs have gaps; fix: free space there"]


class LogWriter:
    """One log file, and the files that a node's ranks left; a write error goes to `complain` only."""

    def __init__(
        self, path: Path, complain: Callable[[Path, OSError], None], files: Path, disk: WriteQueue
    ) -> None:  # fmt: skip
        """files: the directory for the files of its ranks."""
        self._path = path
        self._complain = complain
        self._files = files
        self._disk = disk
        self._file: FileIO | None = None

    def write(self, block: bytes | memoryview, *, note: bytes = b"", is_kept: bool = False) -> bool:
        """Append whole lines; return False if they are dropped since the disk does not respond.

        note: what comes before them; is_kept: they wait for the disk in any case.
        """
        return self._put(self._path, partial(self._append, block, note), len(block), is_kept=is_kept)

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a file that a rank left on the node beside the log, such as files/node_0/NAME."""
        self._put(self._files / name, partial(self._store, name, content), len(content))

    def close(self) -> None:
        """Close the file once all is written."""
        self._disk.put(self._close)

    def _put(self, path: Path, work: Callable[[], object], size_bytes: int, *, is_kept: bool = False) -> bool:
        is_queued = self._disk.put(work, size_bytes, is_kept=is_kept)
        if not is_queued:
            self._complain(path, disk_stalled())
        return is_queued

    # ---- in the thread of the disk --------------------------------------------------------------------------------

    def _append(self, block: bytes | memoryview, note: bytes) -> None:
        view = memoryview(note + block if note else block)
        try:
            if self._file is None:
                self._file = FileIO(self._path, "ab", opener=open_private)
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:  # once there is room again the log continues, with a gap
            self._complain(self._path, error)

    def _store(self, name: str, content: bytes) -> None:
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

    def _close(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:  # a network file system may report only now that it was full
            self._complain(self._path, error)


class Transcript:
    """The messages of `launch`, each line with its time; any thread may add one.

    They wait in memory until `begin`, since a run that never starts leaves no file.
    """

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._waiting: list[bytes] | None = []
        self._lock = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """Whether the run was started."""
        return self._waiting is None

    def add(self, text: str) -> None:
        """Add one message, of one or several lines."""
        stamp = f"{local_time(wall_clock())} ".encode()
        lines = clean(text.encode("utf-8", "replace")).split(b"\n")
        block = b"".join(stamp + line + b"\n" for line in lines)
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(block)
                return
        # Outside of the lock: a disk that hangs is itself worth a message. The event loop must not wait for the disk.
        self._log.write(block, is_kept=True)

    def begin(self) -> None:
        """Write what has waited, and from now on everything at once."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        if waiting:
            self._log.write(b"".join(waiting), is_kept=True)


def redirect_streams(folder: Path) -> None:
    """Let this process's stdout lead nowhere, and stderr to launch.log in the directory, for the traceback of a bug."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        log = os.open(folder / TRANSCRIPT, os.O_WRONLY | os.O_APPEND)
    except OSError:
        log = null
    for fd, target in ((STDOUT, null), (STDERR, log)):
        os.dup2(target, fd)
    for fd in {null, log}:
        os.close(fd)
