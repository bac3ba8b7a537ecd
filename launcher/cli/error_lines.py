"""The streams of a command, and its errors and messages on them while no console is open."""

from __future__ import annotations

import os

import click

from launcher.errors import HostFailure, LauncherError
from launcher.output.output_streams import OutputStreams, describe_error, find_streams
from launcher.output.output_streams import tell as tell


def find_asker() -> OutputStreams | None:
    """Return the streams of the `launch` on another machine that runs this command here; None: the user does."""
    context = click.get_current_context(silent=True)
    return context.find_object(OutputStreams) if context is not None else None


def own_streams() -> OutputStreams:
    """Return the streams where the output of this command is shown."""
    return find_asker() or find_streams(os.environ)


def show_error(error: LauncherError) -> None:
    """Print an error (where, what, value) and then the fix."""
    tell(describe_error(error))


def tell_lost(failure: HostFailure, known: str = "") -> None:
    """Say that a host could not be asked, as describe_lost has it."""
    tell(f"launch: {describe_lost(failure, known)}")


def describe_lost(failure: HostFailure, known: str = "") -> str:
    """Return that a host could not be asked; known: what to say of the run instead of that nothing is known."""
    lines = [f"{failure.host}: {failure.text}", f"  fix: {failure.fix}" if failure.fix else ""]
    known = known or "launch: whether the run continues is unknown here; see launch ps"
    return "\n".join([*filter(None, lines), known])
