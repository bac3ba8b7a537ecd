"""What the logs of a run leave out, in memory for `launch attach`: the live output of a run needs no disk.

The memory is a file without a name, which the kernel removes with the controlling process, whatever ends that. Another
process of the same user on the same machine finds it among the open files of the controller.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

MOST_BYTES = 4 << 20
_NAME = "launch-live-output-{}"


class LiveOutput:
    """The last lines of all logs of a run that their disk doesn't take, in the order in which they came."""

    def __init__(self, run_id: str) -> None:
        self._file = os.fdopen(os.memfd_create(_NAME.format(run_id)), "r+b") if hasattr(os, "memfd_create") else None
        self._size_bytes = 0
        self._lock = threading.Lock()  # each node has a reader thread

    def write(self, block: bytes | memoryview) -> None:
        """Add whole lines; if there are too many, all earlier ones are dropped."""
        with self._lock, contextlib.suppress(OSError):  # no memory is left
            if self._file is None:
                return
            if self._size_bytes + len(block) > MOST_BYTES:
                self._size_bytes = 0
                self._file.truncate(0)
            self._size_bytes += os.pwrite(self._file.fileno(), block, self._size_bytes)


def find_live_output(pid: int, run_id: str) -> Path | None:
    """Return the file of a run's live output in the process that controls it; None if there is none."""
    with contextlib.suppress(OSError):
        for link in Path("/proc", str(pid), "fd").iterdir():
            if f"/memfd:{_NAME.format(run_id)} " in os.readlink(link):  # noqa: PTH115 - the text, not a path
                return link
    return None
