"""The kernel's log, record by record; on most systems root alone may read it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

KERNEL_LOG = "/dev/kmsg"
_MAX_RECORDS = 20000  # more than the log's ring holds


def open_log(path: str = KERNEL_LOG) -> int:
    """Return a descriptor at the oldest record, reads of which never wait; raise OSError if we may not read it."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def read_records(fd: int) -> Iterator[bytes]:
    """Yield the records that this descriptor has not read yet (Documentation/ABI/testing/dev-kmsg)."""
    for _ in range(_MAX_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:  # the ring went round: the next read gives what is the oldest now
            continue
        except OSError:  # at its end it would wait
            return
        if not record:
            return
        yield record
