"""The supervisor's notes for the guardian, which reads them if the supervisor dies."""

from __future__ import annotations

import os

from launcher.node import fast_json


class HandoverLog:
    """The writing end of a pipe that the guardian reads at the end only; a note for which it has no room is lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def note(self, **entry: object) -> None:
        """Write one entry, a line of JSON, without waiting."""
        try:
            os.write(self._fd, fast_json.dumps(entry).encode() + b"\n")
        except OSError:
            pass  # the guardian is dead, and we are about to notice
