"""Whose a run's directory is: a note of its keepers, by which is told later whether the run is over.

A machine that loses power leaves the directory, and so does a run whose keepers were all killed. A process id alone
says nothing after that: the kernel gives it out again, and the directory may be on a disk that machines share. So the
note has the host name, machine id, boot id and PID namespace beside the keepers' ids and start times. It also has the
directory's own path: a directory without a note that names it was not made by launch, or is a copy, and none of ours.

Where the machine has booted since, or the keepers are in another container, only the lock tells whether they live.
Two machines with the same host name and machine id (or none) are thus told apart, unless they share the directory over
a file system whose locks stay on one machine (NFS before 2.6.12, or mounted with nolock or local_lock). Give these
machines names of their own, or a TMPDIR of their own.

Do not assume that the keepers live where `has_ended` is False: it may only be unknown. A host that loses power while
the note is on its way to the disk, or whose disk is full or has no locks, keeps a directory that is never known to be
over.
"""

from __future__ import annotations

import os

from launcher.node import clock, fast_json
from launcher.node.processes import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

OWNER = "owner"
_FIELDS = ("folder", "host", "machine_id", "boot_id", "pid_namespace")
_MACHINE_ID = "/etc/machine-id"


def sign(folder: str, keepers: Iterable[int]) -> None:
    """Leave the note in a new directory of a run; `keepers`: the process ids of supervisor and guardian."""
    note = {
        "folder": os.path.realpath(folder),
        **_this_machine(),
        "boot_id": clock.boot_id(),
        "pid_namespace": _pid_namespace(),
        "keepers": [[keeper.pid, keeper.started] for keeper in map(proc.read_process, keepers) if keeper],
    }
    try:
        with open(os.path.join(folder, OWNER), "w") as file:
            file.write(fast_json.dumps(note))
    except OSError:
        pass  # the run needs none; if nobody is left to remove its directory, it stays


def has_ended(folder: str) -> bool:
    """Tell whether the keepers of a run's directory are surely gone; processes that they left may live on."""
    note = _read_note(folder)
    if note is None or note["folder"] != os.path.realpath(folder):
        return False
    if any(note[name] != value for name, value in _this_machine().items()):
        return False
    if note["boot_id"] is None or note["boot_id"] != clock.boot_id():  # before a boot, or a machine of the same name
        return _is_unlocked(folder)
    if note["pid_namespace"] != _pid_namespace():  # of another container, or of this one before it was restarted
        return _is_unlocked(folder)
    return not any(_lives(*keeper) for keeper in note["keepers"])


def _read_note(folder: str) -> dict[str, Any] | None:
    """Return the note if it is whole; a machine that lost power may have kept a part of it."""
    try:
        with open(os.path.join(folder, OWNER)) as file:
            note = fast_json.loads(file.read())
        keepers = [(int(pid), int(started)) for pid, started in note["keepers"]]
        return {**{name: note[name] for name in _FIELDS}, "keepers": keepers}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _this_machine() -> dict[str, str | None]:
    """Return what tells this machine from others: clones may share the one, and containers the other."""
    return {"host": os.uname().nodename, "machine_id": _machine_id()}


def _machine_id() -> str | None:
    try:
        with open(_MACHINE_ID) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None  # a container mostly has none


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _lives(pid: int, started: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.started == started and process.state not in proc.GONE


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
