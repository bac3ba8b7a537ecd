"""A clock that goes on while this machine sleeps, and what tells one machine's sleep from another's.

launcher/clock.py is the launcher's own: of the node's code, it may import the wire format alone.
"""

from __future__ import annotations

import time

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boottime() -> float:
    """Return seconds that count suspend too, which time.monotonic() does not (clock_gettime(2))."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str | None:
    """Return what all processes on this kernel share, or None where it does not tell."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None
