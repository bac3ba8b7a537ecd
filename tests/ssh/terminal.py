"""A pseudo-terminal that a test types on, and reads when it wants to."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import termios
import time
from typing import Any

from machines.patience import DEADLINE_S

ESCAPES = re.compile(r"\x1b\[[\d;]*[A-Za-z]")  # colors
KEPT_CHARACTERS = 10_000


class Terminal:
    """The launcher's controlling terminal; what is typed on it becomes its signals."""

    def __init__(self) -> None:
        self.screen = ""

    def __enter__(self) -> Terminal:
        self._master, self._slave = pty.openpty()
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._master)
        os.close(self._slave)

    def for_popen(self) -> dict[str, Any]:
        """Return the arguments of Popen that put a process on this terminal."""
        slave = self._slave
        return {
            "stdin": slave,
            "stdout": slave,
            "stderr": slave,
            "start_new_session": True,
            "preexec_fn": lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        }

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, pattern: str, count: int = 1) -> None:
        """Read until `count` places of what was read match; long ago is forgotten."""
        deadline = time.monotonic() + DEADLINE_S
        while len(re.findall(pattern, self.screen)) < count:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left))
            assert ready, f"no {count} x {pattern!r} in time: {self.screen[-3000:]}"
            self.screen = self.screen[-KEPT_CHARACTERS:] + ESCAPES.sub(
                "", os.read(self._master, 1 << 16).decode("utf-8", "replace")
            )
