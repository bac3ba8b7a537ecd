"""What `launch` itself says in a run, in launch.log beside the logs of the hosts, for whoever looks later."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from launcher.clock import local_time, wall_clock
from launcher.escapes import clean
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_log import NodeLog

TRANSCRIPT = "launch.log"


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


class Transcript:
    """The messages of `launch`, each line with its time; any thread may add one.

    They wait in memory until `begin`, since a run that never starts leaves no file.
    """

    def __init__(self, log: NodeLog) -> None:
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
