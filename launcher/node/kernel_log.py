"""Read the kernel's log, record by record; on most systems only root may."""

from __future__ import annotations

import os
from typing import Iterator

KERNEL_LOG = "/dev/kmsg"
_MAX_RECORDS = 20000  # more than the log's ring holds


def open_log(path: str = KERNEL_LOG) -> int:
    """Return a descriptor at the oldest record, whose reads never block; raise OSError if reading is denied."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def read_records(fd: int) -> Iterator[bytes]:
    """Yield the records that this descriptor has not read yet (Documentation/ABI/testing/dev-kmsg)."""
    for _ in range(_MAX_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:  # the ring buffer has overwritten the record; the next read returns the oldest one left
            continue
        except OSError:  # the end of the log, where a read would block
            return
        if not record:
            return
        yield record
