"""Print errors and messages while no console is open: each error is one line and its fix."""

from __future__ import annotations

import os
import re
import sys

import click

from launcher.errors import LauncherError

_HELD_SPACE = "\0"  # replaces the spaces of a command while lines are broken; the text has no control characters
# A command of one of these programs, after a colon or at the start of a fix, up to where the sentence continues.
_COMMAND = re.compile(
    r"""(^\s*|: |; |\bor )((?:launch|test-distributed|ssh(?:-\w+)?|echo|chmod|pip|env|sudo)\ """
    r"""(?:'[^']*'|"[^"]*"|(?!;\ |,\ or\ |\ \(and).)+)"""
)


def show_error(error: LauncherError) -> None:
    """Print an error (where, what, value) and then the fix."""
    from launcher.errors import PreflightError, UnreachableError

    if isinstance(error, UnreachableError):
        from launcher.hosts.unreachable import failure_lines

        lines = [*failure_lines(error.failures), "launch: nothing was started"]
    elif isinstance(error, PreflightError):
        lines = ["launch: nothing was started; these would break the run:"]
        lines += [f"  {line}" for line in error.message.splitlines()]
    else:
        lines = [f"launch: {error.message}"] + ([f"  fix: {error.fix}"] if error.fix else [])
    tell("\n".join(lines))


def tell(text: str) -> None:
    """Print a message on stderr while no console is open, without what a host's words could do to the terminal.

    On a terminal, lines are broken between words, but never inside a command that may be pasted.
    """
    from launcher.escapes import clean

    shown = clean(text.encode("utf-8", "replace"))
    if sys.stderr.isatty():
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        shown = "\n".join(_break(line, columns) for line in shown.decode().split("\n")).encode()
    click.echo(shown, err=True)


def _break(line: str, columns: int) -> str:
    from launcher.output.style import break_line

    held = _COMMAND.sub(lambda found: found[1] + found[2].replace(" ", _HELD_SPACE), line)
    return "\n".join(break_line(held, columns)).replace(_HELD_SPACE, " ")
