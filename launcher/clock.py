"""A clock that keeps running while this machine is suspended, what identifies its kernel, and times as text.

The nodes have their own, launcher/node/clock.py, since the launcher imports only the wire format from node/.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

# time.monotonic() stops in suspend. On Linux only CLOCK_BOOTTIME counts it (clock_gettime(2)). macOS has no
# such name: time.monotonic() is mach_absolute_time() there, and CLOCK_MONOTONIC is what "will continue to increment
# while the system is asleep" (its clock_gettime(3)).
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return seconds that never step back and include the time in suspend."""
    return time.clock_gettime(_CLOCK)


_EPOCH = time.time() - boottime()


def wall_clock() -> float:
    """Return wall-clock seconds that never step back, even if the clock is set: failures are sorted by them."""
    return _EPOCH + boottime()


# Taken once, when this process starts: the timestamps of a log stay in order when summer time ends.
_UTC_OFFSET_S = time.localtime().tm_gmtoff


def utc_offset() -> str:
    """Return how far `local_time` is ahead of UTC, such as `+01:00`."""
    minutes = abs(_UTC_OFFSET_S) // 60
    return f"{'-' if _UTC_OFFSET_S < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def local_time(at: float) -> str:
    """Return wall-clock seconds as `2026-11-20 09:12:33.123`, in the time zone of this machine."""
    second, millis = divmod(int(at * 1000), 1000)
    return f"{_local_second(second)}.{millis:03}"


def iso_time(at: float) -> str:
    """Return wall-clock seconds as `2026-11-20T09:12:33.123+01:00`."""
    return f"{local_time(at).replace(' ', 'T')}{utc_offset()}"


@lru_cache(maxsize=16)
def _local_second(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second + _UTC_OFFSET_S))


def boot_id() -> str | None:
    """Return the id of this kernel's boot, the same in its containers: they are suspended together. None: unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
