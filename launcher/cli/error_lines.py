"""How an error is told where no console is open: one clear line, and the remedy."""

from __future__ import annotations

import click

from launcher.errors import LauncherError


def show_error(error: LauncherError) -> None:
    """Print an error: where, what, value, and then the remedy."""
    from launcher.errors import PreflightError, UnreachableError

    if isinstance(error, UnreachableError):
        from launcher.hosts.unreachable import failure_lines

        lines = [*failure_lines(error.failures), "launch: nothing was started"]
    elif isinstance(error, PreflightError):
        lines = ["launch: these would break the run, nothing was started:"]
        lines += [f"  {line}" for line in error.message.splitlines()]
    else:
        lines = [f"launch: {error.message}"] + ([f"  hint: {error.hint}"] if error.hint else [])
    tell("\n".join(lines))


def tell(text: str) -> None:
    """Say words of ours where no console is open; what a host said in them does not steer the terminal."""
    from launcher.escapes import clean

    click.echo(clean(text.encode("utf-8", "replace")), err=True)
