"""Whole lines of what pdsh prints: each begins with the name of the host whose line it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

from launcher.transports.base import READ_BYTES

MAX_LINE_BYTES = 256 << 10  # pdsh prints no more than 128 KiB of one


def whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines as they come, without their newlines.

    A line that is too long is dropped as a whole: if it were cut, its rest could pass for a line of another host.
    """
    rest, is_dropping = b"", False
    while data := os.read(stream.fileno(), READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines[1:] if is_dropping else lines
        is_dropping = is_dropping and not lines
        if len(rest) > MAX_LINE_BYTES or is_dropping:
            rest, is_dropping = b"", True
