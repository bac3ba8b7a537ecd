"""The note in a run's directory: it names the run's keepers (guardian and supervisor), and so shows if the run is over.

The directory stays behind if the machine loses power, or if all of a run's keepers are killed. A process id alone
proves nothing then: the kernel reuses it, and the directory may be on a disk that several machines share. So the note
has the host name, machine id, boot id and PID namespace besides the keepers' ids and start times. It also has the
directory's own path: a directory without a note that names it is a copy, or was not made by launch.

If the machine has booted since, or the keepers are in another container, only the lock shows whether they live.
This also tells two machines with the same host name and machine id (or none) apart, unless they share the directory
over a file system whose locks stay on one machine (NFS before 2.6.12, or mounted with nolock or local_lock). Give such
machines different names, or a TMPDIR each.

Do not assume that the keepers live if `has_ended` is False: it may only be unknown. If a host loses power before the
note is on the disk, or its disk is full or has no locks, the directory is never known to be over.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, Iterable

from launcher.node import clock, system
from launcher.node.processes import proc

OWNER = "owner"
_FIELDS = ("folder", "host", "machine_id", "boot_id", "pid_namespace")


def sign(folder: str, keepers: Iterable[int]) -> None:
    """Write the note into a run's new directory; keepers: the process ids of supervisor and guardian."""
    note = {
        "folder": os.path.realpath(folder),
        **describe_machine(),
        "keepers": [[keeper.pid, keeper.started] for keeper in map(proc.read_process, keepers) if keeper],
    }
    try:
        with open(os.path.join(folder, OWNER), "w") as file:
            file.write(json.dumps(note))
    except OSError:
        pass  # the run works without it; but if no process is left to remove its directory, that stays


def has_ended(folder: str) -> bool:
    """Tell whether the keepers of a run's directory are certainly gone, or suspended; what they left may still live.

    A supervisor that is suspended has lost its launcher, or will.
    """
    note = _read_note(folder)
    if note is None or note["folder"] != os.path.realpath(folder):
        return False
    here = describe_machine()
    if any(note[name] != here[name] for name in ("host", "machine_id")):
        return False
    if not _is_of_these_processes(note, here):  # an earlier boot, a machine of the same name, or another container
        return is_locked(folder, is_shared=True) is False
    return not any(_lives(*keeper) for keeper in note["keepers"])


def read_keepers(folder: str) -> list[list[int]]:
    """Return process id and start time of the keepers that a directory names, if they would be of this machine."""
    note = _read_note(folder)
    return note["keepers"] if note is not None and _is_of_these_processes(note, describe_machine()) else []


def _is_of_these_processes(note: dict[str, Any], here: dict[str, str | None]) -> bool:
    """Tell whether a process id in a note means what it means here, in this boot and PID namespace."""
    names = "boot_id", "pid_namespace"
    return note["boot_id"] is not None and all(note[name] == here[name] for name in names)


def _read_note(folder: str) -> dict[str, Any] | None:
    """Return the note, or None if it is missing or incomplete, as after a loss of power."""
    try:
        with open(os.path.join(folder, OWNER)) as file:
            note = json.loads(file.read())
        keepers = [[int(pid), int(started)] for pid, started in note["keepers"]]
        return {**{name: note[name] for name in _FIELDS}, "keepers": keepers}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def describe_machine() -> dict[str, str | None]:
    """Return what tells this machine, its boot and this container from others. None: the system has none.

    Containers may share the host name, and clones the machine id (see machine-id(5)); a boot id is one kernel's alone.
    In each PID namespace, process ids mean something else.
    """
    return {
        "host": os.uname().nodename, "machine_id": system.machine_id(), "boot_id": clock.boot_id(),
        "pid_namespace": system.pid_namespace(),
    }  # fmt: skip


def _lives(pid: int, started: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.started == started and process.state not in proc.GONE + proc.SUSPENDED


def is_locked(path: str, *, is_shared: bool) -> bool | None:
    """Tell whether a process holds the lock of a file or directory, such as the one that `workers.make_folder` takes.

    is_shared: whoever holds it shares it. If not, this asks with a shared one, so that several may ask at once.
    None: that is unknown, as on a file system without locks.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if is_shared else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False
