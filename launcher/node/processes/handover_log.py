"""The supervisor's notes, which the guardian reads if the supervisor dies."""

from __future__ import annotations

import os

from launcher.node import fast_json


class HandoverLog:
    """The writing end of a pipe that the guardian reads after the supervisor's death; if it is full, notes are lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def note(self, **entry: object) -> None:
        """Write one entry, a line of JSON, without waiting."""
        try:
            os.write(self._fd, fast_json.dumps(entry).encode() + b"\n")
        except OSError:
            pass  # the guardian is dead, which the supervisor is about to notice
