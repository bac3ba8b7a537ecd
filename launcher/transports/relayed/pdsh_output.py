"""What pdsh and its ssh processes print: which host a line is of, and which hosts are gone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import IO

from launcher.transports.base import READ_BYTES

_ENDED = re.compile(
    rb"pdsh@\S+: (?P<label>\S+): ssh (?P<how>exited with exit code (?P<code>\d+)|killed by signal (?P<signal>\d+))"
)
_KEPT_LINES = 50  # of a host
_KEPT_CHARACTERS = 1000  # of a line
MAX_LINE_BYTES = 256 << 10  # pdsh prints no more than 128 KiB of one


class PdshOutput:
    """What one pdsh has printed besides the relays' lines: how each ssh has ended, and the last lines of each host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._names: dict[bytes, list[str]] = {}  # by label: pdsh cuts a name at its first dot, but no address
        for name in hosts:
            for label in {name, name.partition(".")[0]}:
                self._names.setdefault(label.encode(), []).append(name)
        self._lines: dict[str, list[str]] = {name: [] for name in hosts}
        self._killed: dict[str, str] = {}
        self._exit_codes: dict[str, int] = {}
        self._is_over = False

    def split(self, line: bytes) -> tuple[Sequence[str], bytes]:
        """Return the hosts that a line's label may stand for, and the line without it; pdsh's own lines have none."""
        label, _, text = line.partition(b": ")
        hosts = self._names.get(label, ())
        return hosts, text if hosts else line

    def keep(self, hosts: Sequence[str], line: str) -> None:
        """Keep a line about these hosts; no hosts means all."""
        for host in hosts or self._lines:
            self._lines[host] = [*self._lines[host], line[:_KEPT_CHARACTERS]][-_KEPT_LINES:]

    def find_ended(self, line: bytes) -> Sequence[str]:
        """Return the hosts whose ssh has ended according to a line, and remember how."""
        ended = _ENDED.match(line)
        if ended is None:
            return ()
        gone = self._names.get(ended["label"], [])
        if ended["code"]:
            self._exit_codes.update(dict.fromkeys(gone, int(ended["code"])))
        else:
            self._killed.update(dict.fromkeys(gone, ended["how"].decode()))
        return gone

    def end(self) -> None:
        """Note that pdsh itself has ended; it has reported every ssh that ended before."""
        self._is_over = True

    def said(self, host: str) -> str:
        """Return the last lines of a host, and pdsh's own among them, each with its newline."""
        return "".join(f"{line}\n" for line in self._lines[host])

    def lost(self, host: str) -> str:
        """Return how the connection to a host was lost."""
        if how := self._killed.get(host):
            return f"the connection was lost: its ssh was {how}"
        is_untold = self._is_over and host not in self._exit_codes
        return "the connection was lost" + (": pdsh itself has ended" if is_untold else "")

    def exit_code(self, host: str) -> int | None:
        """Return the exit code of a host's ssh, which is that of the login shell; None if pdsh has reported none."""
        return self._exit_codes.get(host)


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
