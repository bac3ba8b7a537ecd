"""Leave some of a disk free: the home directory of a host that controls a run is used by others as well."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from launcher.output.disk_writer import DiskWriter
from launcher.wording import size

LOOK_S = 1.0


def warn_of_little(folder: Path, least_bytes: int, host: str) -> list[str]:
    """Return a line if soon, or at once, no output is written there, since fewer bytes than that are free."""
    try:
        found = os.statvfs(folder)
    except OSError:  # which `complain` hears as well, from the first write
        return []
    free = found.f_bavail * found.f_frsize
    if free > 2 * least_bytes:
        return []
    text = f"{host}, which controls the run, has {size(free)} free in {folder}"
    return [f"launch: {text}; below {size(least_bytes)} the logs leave the output out; fix: free space there"]


class DiskSpace:
    """Whether more than `least_bytes` are free on the disk of a directory, as the disk's own thread has seen lately."""

    def __init__(self, folder: Path, least_bytes: int, disk: DiskWriter) -> None:
        """least_bytes: 0 for a disk that may be filled."""
        self._folder = folder
        self._least_bytes = least_bytes
        self._disk = disk
        self._looked_at = -LOOK_S
        self._has_room = True

    def has_room(self) -> bool:
        """Tell whether logs may be written; the disk is looked at once a second, and never waited for."""
        has_room = self._has_room
        if self._least_bytes and time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            self._disk.put(self._look)
        return has_room

    def describe(self) -> OSError:
        """Return the error of what is not written."""
        return OSError(errno.ENOSPC, f"less than {self._least_bytes / 1e9:g} GB is free")

    def _look(self) -> None:
        found = os.statvfs(self._folder)
        self._has_room = found.f_bavail * found.f_frsize > self._least_bytes
