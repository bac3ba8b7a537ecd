"""A clock that keeps running while this machine is suspended, as on the nodes, and times as text and back."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from functools import lru_cache

from launcher.node.system import boot_id as boot_id
from launcher.node.system import boottime as boottime

_EPOCH = time.time() - boottime()
_TYPED = re.compile(r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{1,2}):([0-9]{2})")


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


def short_time(at: float, now: float) -> str:
    """Return wall-clock seconds as `18:00`, or as `2026-11-27 18:00` if that isn't the day of `now`.

    It is the local time of then, which `read_time` reads: a plan for next week, and no line of a log.
    """
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"


def read_time(text: str, now: float) -> float:
    """Return the wall-clock seconds of `2026-11-27 18:00`, or of the next `18:00` after `now`, in local time.

    Raise ValueError for anything else.
    """
    found = _TYPED.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    day = datetime.fromisoformat(found[1]) if found[1] else datetime.fromtimestamp(now)
    at = day.replace(hour=int(found[2]), minute=int(found[3]), second=0, microsecond=0)
    if not found[1] and at.timestamp() <= now:
        at += timedelta(days=1)  # by the calendar: a day may have 23 hours
    return at.timestamp()


@lru_cache(maxsize=16)
def _local_second(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second + _UTC_OFFSET_S))
