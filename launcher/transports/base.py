"""What every transport gives: a channel to one process on one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from launcher.errors import HostFailure
from launcher.hosts.host import Host

STDOUT, STDERR = 1, 2
READ_BYTES = 1 << 18
KILLED = 128  # by a signal whose number the transport does not tell


class TransportError(Exception):
    """A host can't be reached, as a value to report; every error of a transport's library is mapped to this."""

    def __init__(self, failure: HostFailure) -> None:
        super().__init__(f"{failure.host}: {failure.text}")
        self.failure = failure


class Channel(Protocol):
    """The standard streams of one remote process.

    One thread reads and one thread writes; `close` may come from any other.
    """

    def read(self) -> tuple[int, bytes]:
        """Block for the next piece: (1, data) of stdout, (2, data) of stderr, (0, b"") at the end of both."""

    def write(self, data: bytes) -> None:
        """Block until all of `data` is on its way; raise OSError when the other side is gone."""

    def close(self) -> None:
        """Hang up: the process sees end of file, and a blocked `read` returns."""

    def exit_code(self) -> int | None:
        """Return the process's exit code, KILLED for an unknown signal, or None where the connection was lost."""


class Transport(Protocol):
    """A way to reach hosts."""

    name: str
    is_terse: bool  # each word to a host costs a call: no beats, so its lease hangs on the connection alone

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        """Start `command` (a shell's command line) on `host`; block, and raise TransportError."""

    def own_messages(self, host: Host) -> Sequence[str]:
        """Return the lines that the way to a host has said itself, also after the end of a process there."""
