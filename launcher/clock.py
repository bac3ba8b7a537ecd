"""A clock that keeps running while this machine is suspended, as on the nodes, and times as text."""

from __future__ import annotations

import time
from functools import lru_cache

from launcher.node.clock import boot_id as boot_id
from launcher.node.clock import boottime as boottime

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
