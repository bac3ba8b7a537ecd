"""The directory of the checkpoints on this node: whether others see the same one, and whether the ranks have saved."""

from __future__ import annotations

import os
import time
from typing import Any

from launcher.node.system import boot_id, find_kind

MOST_FILES = 20_000
_TICK_S = 0.02  # the kernel takes a file's time from a clock that moves 100 times a second


def describe(folder: str) -> dict[str, Any]:
    """Return device, inode and file system of a directory and of each above it, None for one that is missing.

    Links are followed first: where they lead may be missing on one host alone.
    """
    path, levels = os.path.realpath(folder), []
    while path:
        levels.append(_look(path))
        path = os.path.dirname(path) if path != "/" else ""
    return {"kernel": boot_id(), "levels": levels}


def _look(path: str) -> tuple[int, int, str] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, find_kind(path)


def look(folder: str, since: float, least_s: float) -> dict[str, Any]:
    """Return the answer to a LOOK: whether there is such a file, and whether the directory is missing."""
    return {"has_saved": has_save(folder, since, least_s), "is_missing": not os.path.isdir(folder)}


def has_save(folder: str, since: float, least_s: float) -> bool | None:
    """Tell whether a file below `folder` was last written after `since` (wall-clock), and at least `least_s` ago.

    None: there are too many files to look at. Hidden and temporary files don't count: they are no checkpoints, or not
    whole.
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
