"""The text of an error, and a message on stderr, without a console."""

from __future__ import annotations

import sys

from launcher.errors import ChecksFailed, HostsUnreachable, LauncherError
from launcher.escapes import clean
from launcher.hosts.unreachable import failure_lines


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
