"""What pdsh and its ssh processes print: which hosts have logged in, and which ssh has ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import IO

from launcher.transports.base import READ_BYTES

_LOGGED_IN = re.compile(rb"Authenticated to \S+ \(")  # also an ssh to a jump host prints it, if it is as verbose
_ENDED = re.compile(rb"pdsh@\S+: (?P<label>\S+): ssh (?:exited with exit code|killed by signal) \d+")
MAX_LINE_BYTES = 256 << 10  # pdsh prints no more than 128 KiB of one


class PdshOutput:
    """What one pdsh has printed on stdout and stderr; of two hosts with one label it may be about either."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.logged_in: set[str] = set()  # or a jump host on the way has
        self.ended: set[str] = set()  # whose ssh has; pdsh doesn't report an exit code of 0
        self._names: dict[bytes, list[str]] = {}  # by label: pdsh cuts a name at its first dot, but no address
        for name in hosts:
            for label in {name, name.partition(".")[0]}:
                self._names.setdefault(label.encode(), []).append(name)

    def take(self, line: bytes) -> None:
        """Take a line without its newline."""
        if ended := _ENDED.match(line):
            self.ended.update(self._names.get(ended["label"], ()))
        label, _, rest = line.partition(b": ")
        if _LOGGED_IN.match(rest):
            self.logged_in.update(self._names.get(label, ()))


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
