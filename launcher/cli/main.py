"""The entry points of `launch` and `test-distributed`."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import sys
from collections.abc import MutableMapping
from typing import NoReturn

import click

from launcher.cli.command_group import launch
from launcher.cli.error_lines import show_error
from launcher.cli.owner import end_with, find_owner, report_error
from launcher.errors import LauncherError

# Where getpass.getuser looks, before it asks passwd.
_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def main(argv: list[str] | None = None) -> None:
    """Run `launch`; this is its entry point."""
    _call(launch, "launch", sys.argv[1:] if argv is None else argv)


def main_test_distributed(argv: list[str] | None = None) -> None:
    """Run `test-distributed`; this is its entry point."""
    from launcher.cli.test_distributed import command

    _call(command, "test-distributed", sys.argv[1:] if argv is None else argv)


def _call(command: click.Command, name: str, arguments: list[str]) -> None:
    """Run a command and exit with its code; print an error of `launch` as one line and its fix."""
    # A server that waits for its signals with sigwait has blocked them, and what it starts inherits that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    open_closed_streams()
    if f"_{name.replace('-', '_').upper()}_COMPLETE" in os.environ:  # a Tab: errors would be printed into the line
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the end
    complete_environment(os.environ)
    owner = find_owner(os.environ)
    if owner is not None:
        end_with(owner)
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        from launcher.cli.mistakes import explain

        _end_with_error(explain(error, arguments), owner)
    except LauncherError as error:
        _end_with_error(error, owner)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        sys.stdout = None  # what it still holds can't be written when Python exits, either
        _end_with_error(LauncherError(f"can't write the output: {error.strerror}"), owner)


def _end_with_error(error: LauncherError, owner: int | None) -> NoReturn:
    if owner is not None:
        report_error(error)
    show_error(error)
    sys.exit(error.exit_code)


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that cron or a daemon closed, so that no socket gets its number.

    What this process starts inherits it too: ssh would give the number to a socket as well.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if fd > 2:
            os.close(fd)
            break
        os.set_inheritable(fd, True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def complete_environment(environ: MutableMapping[str, str]) -> None:
    """Set HOME and LOGNAME for a user id without an entry in passwd, as with `docker run --user 1234`.

    If neither `environ` nor passwd has them, pathlib, paramiko and others raise.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ["HOME"] = environ.get("HOME") or "/"  # as a login and Docker do
        if not any(environ.get(name) for name in _USER_NAMES):
            environ["LOGNAME"] = f"uid{os.getuid()}"
