"""What the supervisor writes down for the guardian, which reads it if the supervisor is killed."""

from __future__ import annotations

import os

from launcher.node import fast_json


class HandoverLog:
    """A pipe to the guardian; it is small, and must not stop us if the guardian sleeps."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def note(self, **entry: object) -> None:
        """Write down one entry, a line of JSON."""
        try:
            os.write(self._fd, fast_json.dumps(entry).encode() + b"\n")
        except OSError:
            pass  # the guardian is dead, and we are about to notice
