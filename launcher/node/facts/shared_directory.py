"""What tells whether hosts share a directory: its inode, and the file system that it is on."""

from __future__ import annotations

import os
from typing import Any

from launcher.node import clock
from launcher.node.system import find_kind


def describe(folder: str) -> dict[str, Any]:
    """Return device, inode and file system of a directory and of each above it, None for one that is missing.

    Links are followed first: where they lead may be missing on one host alone.
    """
    path, levels = os.path.realpath(folder), []
    while path:
        levels.append(_look(path))
        path = os.path.dirname(path) if path != "/" else ""
    return {"kernel": clock.boot_id(), "levels": levels}


def _look(path: str) -> tuple[int, int, str] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, find_kind(path)
