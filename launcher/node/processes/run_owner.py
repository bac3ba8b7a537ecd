"""Whose a run's directory is: a note of its keepers, by which is told later whether the run is over.

A machine that loses power leaves the directory, and so does a run whose keepers were all killed. A process id alone
says nothing after that: the kernel gives it out again, and a home may be another machine's as well. So the note has the
host, its boot id and its PID namespace beside the keepers' ids and start times.

A directory without a note is one that is just being made, of an older launcher, or on a disk that was full.
Do not assume that the keepers live where `has_ended` is False: it may only be unknown.
"""

from __future__ import annotations

import os
import time

from launcher.node import clock, fast_json
from launcher.node.processes import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

OWNER = "owner"
_MAKING_S = 10.0  # much more than it takes to write the note


def sign(folder: str, keepers: Iterable[int]) -> None:
    """Leave the note in a new directory of a run; `keepers`: the process ids of supervisor and guardian."""
    note = {
        "host": os.uname().nodename,
        "boot_id": clock.boot_id(),
        "pid_namespace": _pid_namespace(),
        "keepers": [[keeper.pid, keeper.started] for keeper in map(proc.read_process, keepers) if keeper],
    }
    try:
        with open(os.path.join(folder, OWNER), "w") as file:
            file.write(fast_json.dumps(note))
    except OSError:
        pass  # its lock and its age remain


def has_ended(folder: str) -> bool:
    """Tell whether the keepers of a run's directory are surely gone; processes that they left may live on."""
    note = _read_note(folder)
    if note is None:
        return _age_s(folder) > _MAKING_S and _is_unlocked(folder)
    if note["host"] != os.uname().nodename:
        return False
    if note["boot_id"] != clock.boot_id():
        return True
    if note["pid_namespace"] != _pid_namespace():  # of another container, or of this one before it was restarted
        return _is_unlocked(folder)
    return not any(_lives(*keeper) for keeper in note["keepers"])


def _read_note(folder: str) -> dict[str, Any] | None:
    """Return the note if it is whole; a machine that lost power may have kept a part of it."""
    try:
        with open(os.path.join(folder, OWNER)) as file:
            note = fast_json.loads(file.read())
        keepers = [(int(pid), int(started)) for pid, started in note["keepers"]]
        return {**{name: note[name] for name in ("host", "boot_id", "pid_namespace")}, "keepers": keepers}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _lives(pid: int, started: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.started == started and process.state not in proc.GONE


def _age_s(folder: str) -> float:
    try:
        return time.time() - os.stat(folder).st_mtime
    except OSError:
        return 0.0


def _is_unlocked(folder: str) -> bool:
    """Tell whether no supervisor holds the lock that `workers.make_folder` takes; False if that can't be known."""
    import fcntl

    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks
        return False
    finally:
        os.close(fd)
    return True
