"""GPU faults (Xids) that the driver wrote to the kernel's log, if this user may read it (usually only root may)."""

from __future__ import annotations

import os
import time

from launcher.node.kernel_log import KERNEL_LOG, open_log, read_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RECENT_S = 24 * 3600.0
_START = b"NVRM: Xid (PCI:"


def find_xids(log: str = KERNEL_LOG, uptime_s: float | None = None) -> list[dict[str, Any]]:
    """Return the GPU (PCI address) and number of each Xid of the last 24 hours, each pair once."""
    since_us = ((time.monotonic() if uptime_s is None else uptime_s) - _RECENT_S) * 1e6
    try:
        fd = open_log(log)
    except OSError:
        return []
    found = {}
    for record in read_records(fd):
        if _START in record:
            entry = _parse(record, since_us)
            if entry is not None:
                found[entry["gpu"], entry["number"]] = entry
    os.close(fd)
    return list(found.values())


def _parse(record: bytes, since_us: float) -> dict[str, Any] | None:
    """Parse `4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, ...`; the third field is in microseconds."""
    head, _, text = record.decode("utf-8", "replace").partition(";")
    gpu, _, rest = text.partition("(PCI:")[2].partition("): ")
    number = rest.partition(",")[0].strip()
    uptime_us = head.split(",")[2:3]
    if not number.isdigit() or not uptime_us or not uptime_us[0].isdigit() or int(uptime_us[0]) < since_us:
        return None
    return {"gpu": gpu, "number": int(number)}
