"""Whether the ranks have saved a checkpoint during this attempt, by the times of the files in a directory."""

from __future__ import annotations

import os
import time

from launcher.node import messages
from launcher.node.processes import workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.node.loop import Loop
    from launcher.node.send_queue import SendQueue

TIMEOUT_S = 2.0  # of a file system that may hang; the launcher waits a little longer
MOST_FILES = 20_000
_TICK_S = 0.02  # the kernel takes a file's time from a clock that moves 100 times a second
_ANSWERS = {True: b"yes", False: b"no", None: b"unknown"}
_MISSING = b"missing"
_MEANINGS = {b"yes": True, b"no": False, _MISSING: False}


def report_save(loop: Loop, send_queue: SendQueue, folder: str, since: float, least_s: float) -> None:
    """Answer a LOOK: whether a file in `folder` was last written after `since`, and at least `least_s` ago.

    A child looks, since a hung file system must not block the supervisor.
    """
    answer_read, answer_write = os.pipe()
    pid = workers.fork()
    if pid == 0:
        try:
            is_there = os.path.isdir(folder)
            os.write(answer_write, _ANSWERS[has_save(folder, since, least_s)] if is_there else _MISSING)
        finally:
            os._exit(0)
    os.close(answer_write)
    loop.read_all(
        answer_read,
        lambda answer: send_queue.send(messages.SEEN, has_saved=_MEANINGS.get(answer), is_missing=answer == _MISSING),
        TIMEOUT_S,
        lambda: workers.kill(workers.Child(pid)),
    )


def has_save(folder: str, since: float, least_s: float) -> bool | None:
    """Tell whether a file below `folder` was last written after `since` (wall-clock), and at least `least_s` ago.

    None: there are too many files to look at.

    Hidden and temporary files don't count: they are no checkpoints, or not whole.
    """
    latest, looked_at = time.time() - least_s, 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_temporary(name)]
        for name in names:
            looked_at += 1
            if looked_at > MOST_FILES:
                return None
            try:
                saved_at = os.stat(os.path.join(place, name)).st_mtime
            except OSError:  # removed meanwhile
                continue
            if since - _TICK_S <= saved_at <= latest and not _is_temporary(name):
                return True
    return False


def _is_temporary(name: str) -> bool:
    return name.startswith(".") or name.endswith((".tmp", ".part", "~"))
