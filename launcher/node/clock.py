"""Seconds that count suspend, and the boot id, by which two processes learn whether they are suspended together.

launcher/clock.py is the launcher's copy: of the node's code, the launcher may import `messages` alone.
"""

from __future__ import annotations

import time

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boottime() -> float:
    """Return seconds that count suspend too, which time.monotonic() does not (clock_gettime(2))."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str | None:
    """Return an id that all processes on this running kernel share, and no other machine; None if it gives none."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None
