"""What the look of a command's output depends on: its terminals, which may be on another machine than the command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

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
