"""`launch` as click knows it, the group of all commands, and the entry points of `launch` and `test-distributed`.

Commands are imported only when they are called, so `launch --help` is quick.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import pwd
import signal
import sys
from collections.abc import MutableMapping
from dataclasses import asdict
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from launcher import __version__
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES, GROUPS, load_command
from launcher.errors import ChecksFailed, HostsUnreachable, LauncherError, UsageError
from launcher.output.output_streams import describe_error, tell

# Where getpass.getuser looks, before it asks passwd.
_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
# Of the environment: the process id of the Python program that has called `launcher.launch`, our parent.
OWNER = "LAUNCH_OWNER"
_OWNER_LOOK_S = 0.2


class CommandGroup(click.Group):
    """Loads a command when it is called; any other first word starts the default command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return load_command(name) if name in COMMANDS else None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help in 23 lines, so that all of it fits on a small terminal."""
        self.format_usage(ctx, formatter)
        formatter.write(f"  {self.help}\n")
        for heading, entries in GROUPS.items():
            if heading == "Also":
                formatter.write(f"{heading + ':':<9}{', '.join(entries)}\n")
                continue
            names = [f"{heading}:", *[""] * (len(entries) - 1)]
            for label, (name, (_, text)) in zip(names, entries.items(), strict=True):
                formatter.write(f"{label:<9}{name:<12}{text}\n")
        formatter.write("Examples (options: launch COMMAND --help; version: launch --version):\n")
        for line in EXAMPLES[DEFAULT_COMMAND]:
            formatter.write(f"  {line}\n")

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.command_path
        formatter.write_usage(path, f"[OPTIONS] SCRIPT [ARGS]...  or  {path} COMMAND [OPTIONS] ...")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, without importing them, and files or options of the default command."""
        if incomplete.startswith("-") and (default := self.get_command(ctx, DEFAULT_COMMAND)) is not None:
            own = click.Command.shell_complete(self, ctx, incomplete)
            return own + default.shell_complete(click.Context(default, ctx, resilient_parsing=True), incomplete)
        found = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)}
        files = [CompletionItem(incomplete, type="file")]  # first: the script for bash drops what it has got till then
        return files + [CompletionItem(name, help=text) for name, text in found.items()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "-h", "--version")
        if args[:1] == ["help"]:
            if args[1:2] and args[1] not in COMMANDS:
                raise UsageError(f"no command {args[1]!r}", "see launch --help for the commands")
            args = [*args[1:2], "--help"]
        if not args:
            args = [] if ctx.resilient_parsing else [DEFAULT_COMMAND]  # a Tab: the word that is typed may be a command
        elif args[0] not in own and args[0] not in COMMANDS:
            if not args[0].startswith("-"):
                from launcher.cli.mistakes import refuse_first_word

                refuse_first_word(args)
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="launch")
def launch() -> None:
    """Start PyTorch training on several machines over SSH, without a scheduler."""


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
    tell(describe_error(error))
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


# ---- what a `launch` owes the Python program that started it: to end with it, and errors as values ------------------


def find_owner(variables: MutableMapping[str, str]) -> int | None:
    """Return the process that owns this one, and remove it from the environment, which others inherit."""
    owner = variables.pop(OWNER, "")
    return int(owner) if owner.isdecimal() else None


def end_with(owner: int) -> None:
    """Stop this process as SIGTERM does, once its owner is gone, however that ended.

    A pipe would stay open in processes that the owner has forked. A timer needs no thread, which --detach can't have
    before it forks, and is not the child's that then controls the run.
    """

    def look(*_: object) -> None:
        if os.getppid() != owner:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _OWNER_LOOK_S, _OWNER_LOOK_S)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python then restores the default, which ends the process


def report_error(error: LauncherError) -> None:
    """Print an error as the last object of stdout, with all that its exception has."""
    from launcher.cli.find_run import ControllerLost
    from launcher.output.console import dated

    event = dated(
        "error",
        exit_code=error.exit_code,
        shown=describe_error(error).removeprefix("launch: "),
        message=error.message,
        fix=error.fix,
        unreachable=list(map(asdict, error.failures)) if isinstance(error, HostsUnreachable | ControllerLost) else [],
        findings=[finding.as_record() for finding in error.findings] if isinstance(error, ChecksFailed) else [],
    )
    print(json.dumps(event), flush=True)
