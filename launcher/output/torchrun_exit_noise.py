"""What torchrun prints if node 0's torchrun, which holds the store, leaves the exit barrier first: not a failure.

In about one of ten successful runs it is a page of C++ frames. It is held back until it is known how the run ended.
See https://github.com/pytorch/pytorch/issues/69520.
"""

from __future__ import annotations

import re

MOST_BYTES = 64 << 10  # the page has 5 KiB

# Of the logging of torch 2.1 and newer each line of a record has the prefix of the first; older ones have none.
_FIRST = re.compile(
    rb"\[[^\]]* TCPStore\.cpp:\d+\] \[c10d\] \w+ failed on SocketImpl\("
    rb"|(?P<prefix>.*\btorch[./]distributed[./]elastic[./]agent[./]server[./]api\b[^ ]* ?(?:\[\w+\] )?)"
    rb"Error waiting on exit barrier\b"
)
_FURTHER = re.compile(
    rb"$|Exception raised from |frame #\d+: |<omitting python frames>"
    rb"|Traceback \(most recent call last\):|\s+\S|[\w.]+(?:Error|Exception)\b"
)


class TorchrunExitNoise:
    """Takes those lines out of torchrun's stderr, and keeps them for a run that turns out to have failed."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._prefix: bytes | None = None  # of the current record; None: outside of one

    def hold(self, lines: bytes) -> bytes:
        """Return the lines of a block that are to be shown now."""
        if self._prefix is None and not _has_first(lines):
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if not self._is_held(line))

    def release(self) -> bytes:
        """Return what was held back."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def _is_held(self, line: bytes) -> bool:
        first = _FIRST.match(line)
        if first is not None:
            self._prefix = first["prefix"] or b""
        elif self._prefix is not None and not self._goes_on(line):
            self._prefix = None
        if self._prefix is None or len(self._held) + len(line) > MOST_BYTES:
            return False
        self._held += line
        if line == b"\n":  # behind the last frame
            self._prefix = None
        return True

    def _goes_on(self, line: bytes) -> bool:
        has_prefix = bool(self._prefix) and line.startswith(self._prefix or b"")
        return has_prefix or _FURTHER.match(line) is not None


def _has_first(lines: bytes) -> bool:
    return b"failed on SocketImpl(" in lines or b"Error waiting on exit barrier" in lines
