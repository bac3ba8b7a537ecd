"""A clock that goes on while this machine sleeps, and what tells one machine's sleep from another's.

launcher/node/clock.py is the nodes' own: it is sent to them, and the launcher imports the wire format alone from there.
"""

from __future__ import annotations

import time
from pathlib import Path

# time.monotonic() stands still in suspend. Linux counts that in CLOCK_BOOTTIME alone (clock_gettime(2)). macOS has no
# such name: time.monotonic() is mach_absolute_time() there, and CLOCK_MONOTONIC is what "will continue to increment
# while the system is asleep" (its clock_gettime(3)).
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return seconds that never step back, and count what this machine has slept."""
    return time.clock_gettime(_CLOCK)


_EPOCH = time.time() - boottime()


def wall_clock() -> float:
    """Return wall-clock seconds that never step back, whoever sets the clock: failures are put in order by them."""
    return _EPOCH + boottime()


def boot_id() -> str | None:
    """Return what all processes on this kernel share, containers too: they sleep together. None: it does not tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
