"""What pdsh and its ssh processes print: which hosts have logged in, how each ssh has ended, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from launcher.transports.base import READ_BYTES

_LOGGED_IN = re.compile(r"^Authenticated to \S+ \(")  # also an ssh to a jump host prints it, if it is as verbose
_SUMMARY = ("Transferred: sent", "Bytes per second: sent")
_ENDED = re.compile(
    rb"pdsh@\S+: (?P<label>\S+): ssh (?P<how>exited with exit code \d+|killed by signal (?P<signal>\d+))"
)
_KEPT_LINES = 50  # of a host
_KEPT_CHARACTERS = 1000  # of a line
MAX_LINE_BYTES = 256 << 10  # pdsh prints no more than 128 KiB of one


@dataclass(slots=True)
class Login:
    """What pdsh has printed about one host."""

    lines: list[str] = field(default_factory=list)  # the last ones; after a login, those that came later
    has_logged_in: bool = False  # or a jump host on the way has, or another host with the same label
    has_ended: bool = False  # its ssh has; pdsh doesn't report an exit code of 0
    killed: str = ""  # by which signal its ssh was

    @property
    def lost(self) -> str:
        """How the connection was lost, in the words of ssh if there are any."""
        why = f"its ssh was {self.killed}" if self.killed else next(filter(None, map(str.strip, self.lines[::-1])), "")
        return f"the connection was lost{why and f': {why}'}"


class PdshOutput:
    """All that one pdsh has printed on stdout and stderr, by host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.logins = {name: Login() for name in hosts}
        self._names: dict[bytes, list[str]] = {}  # by label: pdsh cuts a name at its first dot, but no address
        for name in hosts:
            for label in {name, name.partition(".")[0]}:
                self._names.setdefault(label.encode(), []).append(name)

    def take(self, line: bytes) -> None:
        """Take a line without its newline; pdsh's own lines that name no host are kept for all."""
        if ended := _ENDED.match(line):
            self._end(ended)
            return
        label, _, rest = line.partition(b": ")
        hosts = self._names.get(label, ())
        text = (rest if hosts else line).decode("utf-8", "replace").rstrip("\r")
        if text.startswith(_SUMMARY):
            return
        for host in hosts or self.logins:
            login = self.logins[host]
            if hosts and _LOGGED_IN.match(text):
                login.has_logged_in = True
                login.lines.clear()
            else:
                login.lines = [*login.lines, text[:_KEPT_CHARACTERS]][-_KEPT_LINES:]

    def _end(self, ended: re.Match[bytes]) -> None:
        for host in self._names.get(ended["label"], ()):
            login = self.logins[host]
            login.has_ended = True
            if ended["signal"]:
                login.killed = ended["how"].decode()


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
