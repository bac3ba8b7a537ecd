"""Whether hosts share a directory: node 0 puts an empty file into it, and the others look for that.

The file is a child's, which removes it when its pipe ends: the run starts or is stopped, or the supervisor was killed.
Then the guardian may kill that child first, so it removes the file as well.
"""

from __future__ import annotations

import os
import signal

from launcher.node import fast_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def hold_token_and_exit(answer_fd: int, life_fd: int, folder: str, name: str) -> NoReturn:
    """In a fork: put the file `name` into `folder`, or the first directory above it that exists; answer how far up.

    It stays until `life_fd` is at its end.
    """
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the pipe comes first, or at once
        _close_others(answer_fd, life_fd)
        existing, up = find_existing(folder)
        path = os.path.join(existing, name)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:  # nobody may write there yet: nothing is known
            os._exit(0)
        try:
            os.write(answer_fd, fast_json.dumps({"up": up, "is_there": True, "path": path}).encode())
            os.close(answer_fd)
            while os.read(life_fd, 1):
                pass
        finally:
            remove_token(path)
    finally:
        os._exit(0)


def remove_token(path: str) -> None:
    """Remove the file, if it is still there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _close_others(*kept: int) -> None:
    """Close all other descriptors: one of them may hold the port of node 0."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # that of the listing itself
                pass


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
