"""What the look of a command's output depends on: its terminals, which may be on another machine than the command.

And how a message of `launch` looks there: its lines stay whole, so that what is copied from them can be pasted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

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
