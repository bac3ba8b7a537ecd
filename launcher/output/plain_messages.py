"""The text of an error without a console, and how a message is cleaned and broken into lines for stderr."""

from __future__ import annotations

import re
import sys

from launcher.errors import ChecksFailed, HostsUnreachable, LauncherError
from launcher.escapes import clean
from launcher.hosts.unreachable import failure_lines
from launcher.output.output_streams import OutputStreams
from launcher.output.style import break_line

_HELD_SPACE = "\0"  # replaces the spaces of a command while lines are broken; the text has no control characters
# A command of one of these programs, after a colon or at the start of a fix, up to where the sentence continues.
_COMMAND = re.compile(
    r"""(^\s*|: |; |\bor )((?:launch|test-distributed|torchfrtrace|ssh(?:-\w+)?|echo|chmod|pip|env|sudo)\ """
    r"""(?:'[^']*'|"[^"]*"|(?!;\ |,\ or\ |\ \(and).)+)"""
)


def describe_error(error: LauncherError) -> str:
    """Return the lines of an error (where, what, value), and then of the fix."""
    if isinstance(error, HostsUnreachable):
        return "\n".join([*failure_lines(error.failures), "launch: nothing was started"])
    if isinstance(error, ChecksFailed):
        lines = ["launch: nothing was started; these would break the run:"]
        return "\n".join([*lines, *(f"  {line}" for line in error.message.splitlines())])
    return f"launch: {error.message}" + (f"\n  fix: {error.fix}" if error.fix else "")


def tell(text: str, streams: OutputStreams) -> None:
    """Print a message on stderr, without what a host's words could do to the terminal.

    On a terminal, lines are broken between words, but never inside a command that may be pasted.
    """
    shown = clean(text.encode("utf-8", "replace")).split(b"\n")
    columns = streams.find_columns()
    sys.stderr.flush()
    sys.stderr.buffer.write(b"\n".join(break_message(line, columns) for line in shown) + b"\n")
    sys.stderr.buffer.flush()


def break_message(line: bytes, columns: int | None) -> bytes:
    """Return a line broken between words, for a terminal so wide; None: it is none, and the line stays whole."""
    if columns is None:
        return line
    text = line.decode("utf-8", "replace")
    held = _COMMAND.sub(lambda found: found[1] + found[2].replace(" ", _HELD_SPACE), text)
    return "\n".join(break_line(held, columns)).replace(_HELD_SPACE, " ").encode()
