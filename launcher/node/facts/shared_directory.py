"""Whether hosts share a directory: node 0 puts an empty file into it, and the others look for that.

A child keeps the file, and removes it when its pipe ends: all have answered, or the supervisor was killed, be it with
its guardian. If the supervisor alone was killed, its guardian may kill the child first; so it removes the file as well.
"""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Any, Callable, NoReturn

from launcher.node.processes import workers

REMOVE_S = 0.5  # removing takes a millisecond; a file system that hangs is not waited for


class Token:
    """The file of node 0."""

    def __init__(self, folder: str, name: str, on_removed: Callable[[], object]) -> None:
        self._folder = folder
        self._name = name
        self._on_removed = on_removed
        self._life_fd = self._done_fd = -1

    def start(self) -> int:
        """Start the child; return the descriptor of its answer, `path`, and `up`: how many levels above `folder`."""
        answer_read, answer_write = os.pipe()
        life_read, self._life_fd = os.pipe()
        self._done_fd, done_write = os.pipe()
        try:
            if workers.fork(death_signal=0) == 0:
                _hold_and_exit(answer_write, life_read, done_write, self._folder, self._name)
        finally:
            for fd in (answer_write, life_read, done_write):
                os.close(fd)
        return answer_read

    def release(self) -> None:
        """Let the child remove the file, as soon as it can."""
        if self._life_fd >= 0:
            os.close(self._life_fd)
            self._life_fd = -1

    def remove(self) -> None:
        """Remove the file, and wait a moment for that: the child may be killed next."""
        self.release()
        if select.select([self._done_fd], [], [], REMOVE_S)[0]:
            self._on_removed()
        os.close(self._done_fd)


def _hold_and_exit(answer_fd: int, life_fd: int, done_fd: int, folder: str, name: str) -> NoReturn:
    """In a fork: make the file in `folder`, or in the first directory above it that exists, and keep it."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the pipe comes first, or at once
        workers.drop_descriptors(answer_fd, life_fd, done_fd)  # one of the others may hold the port of node 0
        existing, up = find_existing(folder)
        path = os.path.join(existing, name)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:  # nobody may write there yet: nothing is known
            os._exit(0)
        try:
            os.write(answer_fd, json.dumps({"up": up, "is_there": True, "path": path}).encode())
            os.close(answer_fd)
            while os.read(life_fd, 1):
                pass
        finally:
            remove_token(path)
    finally:
        os._exit(0)  # which closes `done_fd`


def look_for_token(folder: str, up: int, name: str) -> dict[str, Any]:
    """Return the answer of another host: whether the file is there, so many levels above `folder`."""
    for _ in range(up):
        folder = os.path.dirname(folder)
    return {"up": None, "is_there": os.path.lexists(os.path.join(folder, name))}


def find_existing(folder: str) -> tuple[str, int]:
    """Return the first directory that exists, from `folder` upward, and how many levels up it is."""
    up = 0
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder, up = os.path.dirname(folder), up + 1
    return folder, up


def remove_token(path: str) -> None:
    """Remove the file, if it is still there."""
    try:
        os.unlink(path)
    except OSError:
        pass
