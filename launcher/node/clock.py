"""A clock that runs during suspend, and the boot id, which shows whether two processes are suspended together.

The launcher has both too.
"""

from __future__ import annotations

import time

# time.monotonic() stops in suspend. On Linux only CLOCK_BOOTTIME counts it (clock_gettime(2)). macOS has no
# such name: time.monotonic() is mach_absolute_time() there, and CLOCK_MONOTONIC is what "will continue to increment
# while the system is asleep" (its clock_gettime(3)).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boottime() -> float:
    """Return seconds that never step back and include the time in suspend."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str | None:
    """Return the id of this kernel's boot, the same in its containers: they are suspended together. None: unknown."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None
