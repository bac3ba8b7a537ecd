"""What the look of a command's output depends on: its terminals, which may be on another machine than the command.

And how a message of `launch` looks there: its lines stay whole, so that what is copied from them can be pasted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from launcher.errors import ChecksFailed, HostsUnreachable, LauncherError
from launcher.escapes import clean
from launcher.hosts.unreachable import failure_lines
from launcher.output.lines import STDERR, STDOUT


@dataclass(frozen=True, slots=True)
class OutputStreams:
    """Where the two streams of a command lead."""

    terminals: frozenset[int]  # which of STDOUT and STDERR are terminals
    is_one_file: bool  # both lead to the same terminal or file, so their order can be kept
    with_color: bool  # on the terminals

    def has_color(self, fd: int) -> bool:
        """Tell whether a stream is shown in color."""
        return self.with_color and fd in self.terminals


def find_streams(variables: Mapping[str, str]) -> OutputStreams:
    """Return the streams of this process's streams; variables: its environment, with NO_COLOR (https://no-color.org)."""
    return OutputStreams(
        terminals=frozenset(fd for fd in (STDOUT, STDERR) if os.isatty(fd)),
        is_one_file=os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR)),
        with_color=not variables.get("NO_COLOR"),
    )


class Style(Enum):
    """The kind of a message; the value is the color and weight that a terminal shows it in (SGR of ECMA-48)."""

    TEXT = ""
    STRONG = "1"
    FAILURE = "1;31"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a longer message."""

    text: str
    style: Style = Style.TEXT


def paint(text: str, style: Style) -> str:
    """Return a message as a terminal with colors gets it."""
    return text if style is Style.TEXT else f"\x1b[{style.value}m{text}\x1b[0m"


def describe_error(error: LauncherError) -> str:
    """Return the lines of an error (where, what, value), and then of the fix."""
    if isinstance(error, HostsUnreachable):
        return "\n".join([*failure_lines(error.failures), "launch: nothing was started"])
    if isinstance(error, ChecksFailed):
        lines = ["launch: nothing was started; these would break the run:"]
        return "\n".join([*lines, *(f"  {line}" for line in error.message.splitlines())])
    return f"launch: {error.message}" + (f"\n  fix: {error.fix}" if error.fix else "")


def tell(text: str) -> None:
    """Print a message on stderr, without what a host's words could do to the terminal."""
    sys.stderr.flush()
    sys.stderr.buffer.write(clean(text.encode("utf-8", "replace")) + b"\n")
    sys.stderr.buffer.flush()
