"""Find and remove the directories of runs that are over, if no process was left to remove them.

Only a directory that a supervisor made for a run of this user is ever found or removed, in any place that `make_folder`
may use. It is recognized by its name, by being writable for this user only, and by the note in it (`run_owner`). A name
alone proves nothing: a user may have a `launch-results-20241224`.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from launcher.node.processes import proc, run_owner, workers

_TOKEN_LENGTH = 8  # at the end of the name


def find_folders(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the directories of this user's runs that are over: path, run, and how many files its ranks left in it.

    runs: what `leftovers.find_runs` has found; a run of which only leftover processes live counts as over, since these
    are stopped first.
    """
    candidates = [path for path in _list_folders() if run_owner.has_ended(path)]
    if not candidates:
        return []
    left = {_run_of_mark(run["mark"]) for run in runs if not run["is_owned"]}
    alive = _living_runs() - left.difference(_run_of_mark(run["mark"]) for run in runs if run["is_owned"])
    return [
        {"path": path, "run": _run_of_folder(path), "files": _count_files(path)}
        for path in candidates
        if _run_of_folder(path) not in alive
    ]


def remove_folders(paths: list[str]) -> list[list[str]]:
    """Remove those of these directories whose runs are over; return those that remain, each with the reason."""
    there = set(_list_folders())
    alive = _living_runs()
    kept = []
    for path in paths:
        if path not in there:
            continue  # it has been removed meanwhile
        if _run_of_folder(path) in alive or not run_owner.has_ended(path):
            kept.append([path, "its run is still active"])
            continue
        reason = workers.remove_folder(path)
        if reason is not None and os.path.lexists(path):
            kept.append([path, reason])
    return kept


def is_own(path: str) -> bool:
    """Tell whether a path is a directory of this user, and not a link to one, in which no other user may write.

    Another could have written the note there: launch's directories are private.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_private


def _list_folders() -> list[str]:
    """Return the paths of all private directories of this user on this node that have the name of a run's directory."""
    found: list[str] = []
    for base in dict.fromkeys(map(os.path.realpath, workers.folder_places())):
        try:
            names = os.listdir(base)
        except OSError:
            continue
        paths = [os.path.join(base, name) for name in sorted(names) if _run_of_folder(name)]
        found += filter(is_own, paths)
    return found


def _run_of_folder(path: str) -> str:
    """Return RUN of a path `.../launch-RUN-TOKEN`, or "" if it has another name."""
    start, _, token = os.path.basename(path).rpartition("-")
    is_token = len(token) == _TOKEN_LENGTH and not token.strip("0123456789abcdef")
    return start[len("launch-") :] if is_token and start.startswith("launch-") else ""


def _living_runs() -> set[str]:
    """Return the ids of all runs whose mark any process here has, in any container."""
    return {_run_of_mark(mark) for mark in map(proc.read_mark, proc.read_all()) if mark is not None}


def _run_of_mark(mark: str) -> str:
    return mark.partition(".")[0]


def _count_files(folder: str) -> int:
    try:
        return len(os.listdir(os.path.join(folder, workers.FILES)))
    except OSError:
        return 0
