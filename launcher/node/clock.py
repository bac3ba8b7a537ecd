"""A clock that runs during suspend, and the boot id, which shows whether two processes are suspended together.

launcher/clock.py is the launcher's copy, since the launcher may import only `messages` from the node's code.
"""

from __future__ import annotations

import time

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boottime() -> float:
    """Return seconds that include suspend, unlike time.monotonic() (clock_gettime(2))."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str | None:
    """Return the id of this boot, the same for all processes on this kernel and unique to it; None if unknown."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None
