"""Print errors and messages of a command while no console is open, on the streams that os.environ describes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.errors import HostFailure, LauncherError


def show_error(error: LauncherError) -> None:
    """Print an error (where, what, value) and then the fix."""
    from launcher.output.plain_messages import describe_error

    tell(describe_error(error))


def tell(text: str) -> None:
    """Print a message on stderr."""
    from launcher.output import plain_messages
    from launcher.output.output_streams import find_streams

    plain_messages.tell(text, find_streams(os.environ))


def tell_lost(failure: HostFailure, known: str = "") -> None:
    """Say that a host could not be asked; known: what to say of the run instead of that nothing is known."""
    lines = [f"launch: {failure.host}: {failure.text}", f"  fix: {failure.fix}" if failure.fix else ""]
    known = known or "launch: whether the run continues is unknown here; see launch ps"
    tell("\n".join([*filter(None, lines), known]))
