"""The private directory of a run on this node: made by its supervisor, and found if no process was left to remove it.

The directory stays behind if the machine loses power, or if all of a run's keepers are killed. Two signs tell that its
run is over: no process holds its lock, which the supervisor has as long as it lives, and none here has the run's mark.
Both hold for this kernel alone, in whatever container, and the directory may be on a disk that several machines share.
So its name has a hash of this machine and of the place where it is. A copy elsewhere, and what a user has called
`launch-results-20241224`, has another name.

Machines with the same host name and machine id (or none) would take each other's directories for theirs: if they share
a disk for these, give them different names, or a TMPDIR each. On a file system without locks, a directory is never
known to be over.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from typing import Any

from launcher.node import own_folders, system
from launcher.node.processes import proc, workers


def make_folder(name: str) -> str:
    """Make a run's directory in the first place that allows it, and where nobody else could replace it.

    It is locked before it has the directory for the ranks' files, without which nobody takes it for one that is over.
    """
    error = OSError("no place for the run's directory")
    for base in _places():
        path = os.path.join(base, "launch-%s-%s%s" % (name, _hash_place(base), os.urandom(4).hex()))
        try:
            own_folders.refuse_others(os.path.dirname(path))
            os.mkdir(path, 0o700)
        except OSError as reason:
            error = reason
        else:
            system.hold_lock(path, fcntl.LOCK_EX)
            return path
    raise error


def find_folders(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the directories of this user's runs that are over: path, run, and how many files its ranks left in it.

    runs: what `leftovers.find_runs` has found; a run of which only leftover processes live counts as over, since these
    are stopped first.
    """
    candidates = _list_folders()
    if not candidates:
        return []
    left = {_run_of_mark(run["mark"]) for run in runs if not run["is_owned"]}
    alive = _living_runs() - left.difference(_run_of_mark(run["mark"]) for run in runs if run["is_owned"])
    return [
        {"path": path, "run": run, "files": len(os.listdir(os.path.join(path, workers.FILES)))}
        for path, run in candidates.items()
        if run not in alive
    ]


def remove_folders(paths: list[str]) -> list[list[str]]:
    """Remove those of these directories whose runs are over; return those that remain, each with the reason."""
    over, alive = _list_folders(), _living_runs()
    kept = []
    for path in paths:
        reason = "its run is still active"
        if path in over and over[path] not in alive:
            reason = workers.remove_folder(path) or ""
        if reason and os.path.lexists(path):
            kept.append([path, reason])
    return kept


def is_own(path: str) -> bool:
    """Tell whether a path is a directory of this user, and not a link to one, in which no other user may write.

    Another could have put anything there: launch's directories are private.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_private


def _places() -> list[str]:
    """Return the directories in which to try to make a run's directory, in order."""
    return [place for place in (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", os.path.expanduser("~")) if place]


def _hash_place(base: str) -> str:
    """Return what the name of each run's directory in this place has, on this machine: containers may share a name."""
    place = os.uname().nodename, system.machine_id(), os.path.realpath(base)
    return hashlib.sha256(repr(place).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _list_folders() -> dict[str, str]:
    """Return the runs of all directories that supervisors of this user and machine have made, and none holds now."""
    found: dict[str, str] = {}
    for base in dict.fromkeys(map(os.path.realpath, _places())):
        try:
            names = sorted(os.listdir(base))
        except OSError:
            continue
        ours = re.compile("launch-(.+)-%s[0-9a-f]{8}" % _hash_place(base))
        for match in filter(None, map(ours.fullmatch, names)):
            path = os.path.join(base, match.group())
            is_made = is_own(path) and os.path.isdir(os.path.join(path, workers.FILES))
            if is_made and system.is_locked(path) is False:
                found[path] = match.group(1)
    return found


def _living_runs() -> set[str]:
    """Return the ids of all runs whose mark any process here has, in any container."""
    return {_run_of_mark(mark) for mark in map(proc.read_mark, proc.read_all()) if mark is not None}


def _run_of_mark(mark: str) -> str:
    return mark.partition(".")[0]
