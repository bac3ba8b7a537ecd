"""The supervisor's notes, which the guardian reads if the supervisor dies."""

from __future__ import annotations

import json
import os
from typing import Any


class HandoverLog:
    """The writing end of a pipe that the guardian reads after the supervisor's death; if it is full, notes are lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def note(self, **entry: object) -> None:
        """Write one entry, a line of JSON, without waiting."""
        try:
            os.write(self._fd, json.dumps(entry).encode() + b"\n")
        except OSError:
            pass  # the guardian is dead, which the supervisor is about to notice


def read_notes(fd: int) -> dict[str, Any]:
    """Return the supervisor's notes: `processes`, and `mark`, `folder` and `stop_timeout_s` if PREPARE was served.

    `folder` is None once it is removed, while a claim waits for what becomes of it.
    `sampler` is the process id and the start time of what reads the GPUs.
    """
    os.set_blocking(fd, False)
    text = b""
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            break
        if not data:
            break
        text += data
    handover_log: dict[str, Any] = {"processes": []}
    for line in text.splitlines():
        entry = json.loads(line.decode())
        if "pid" in entry:
            handover_log["processes"].append(entry)
        else:
            handover_log.update(entry)
    return handover_log
