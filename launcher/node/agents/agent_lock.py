"""The lock that an agent holds on its host, so that a run has one there however many are started.

Several may be: from the launch host, from the controller, and by the host itself after a boot. The lock is that of an
open file, so the parent of an agent shares it with the one that it starts again, and the kernel releases it with the
last of them.
"""

from __future__ import annotations

import os
import time

from launcher.node import boot_units
from launcher.node.own_folders import make_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_KEPT_S = 30 * 86400.0  # of a run whose agent was killed, or whose host lost power
_SUFFIX = ".lock"


class AgentLock:
    """The lock of one agent. Without a disk that takes it there is none, which is no reason not to start."""

    def __init__(self, path: str = "", fd: int = -1) -> None:
        self._path = path
        self._fd = fd

    def release(self) -> None:
        """Remove the file, and with it the lock."""
        if self._fd >= 0:
            try:
                os.unlink(self._path)
            except OSError:
                pass
            os.close(self._fd)
            self._fd = -1


def name_agent(run: str, index: int, fingerprint: str) -> str:
    """Return the name of an agent on its host.

    Two runs from two launch hosts may have one id; their certificates, of which fingerprint is the hash, differ.
    """
    return "%s.%s.%d" % (run, fingerprint[:8], index)


def take_lock(run: str, index: int, fingerprint: str) -> Optional[AgentLock]:
    """Return the lock, or None if another agent of this name holds it."""
    import fcntl

    path = boot_units.find_lock(name_agent(run, index, fingerprint))
    folder = os.path.dirname(path)
    try:
        make_own(os.path.dirname(folder))
        make_own(folder)
        _remove_old(folder)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)):
                    return AgentLock(path, fd)
            except BlockingIOError:
                os.close(fd)
                return None
            except OSError:
                os.close(fd)
                raise
            os.close(fd)  # its holder has just removed it
    except OSError:
        return AgentLock()


def _remove_old(folder: str) -> None:
    """Remove the files of agents that were killed long ago; one that is locked belongs to a long run."""
    import fcntl

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if not name.endswith(_SUFFIX) or time.time() - os.lstat(path).st_mtime < _KEPT_S:
                continue
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(fd)
        except OSError:
            pass
