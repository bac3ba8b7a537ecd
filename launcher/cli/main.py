"""The entry points of `launch` and `test-distributed`.

Commands are imported only when they are called, so `launch --help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from launcher import __version__
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, write_examples
from launcher.cli.error_lines import show_error
from launcher.cli.script_words import refuse_first_word
from launcher.errors import LauncherError, UsageError


class CommandGroup(click.Group):
    """Loads a command when it is called; any other first word starts the default command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave out --version and --help, so that all commands fit on a small terminal."""
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands (options: launch help COMMAND; version: launch --version)"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples("launch", formatter)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.command_path
        formatter.write_usage(path, f"[OPTIONS] SCRIPT [ARGS]...  or  {path} COMMAND [OPTIONS] ...")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "-h", "--version")
        if args[:1] == ["help"]:
            if args[1:2] and args[1] not in COMMANDS:
                raise UsageError(f"no command {args[1]!r}", "see launch --help for the commands")
            args = [*args[1:2], "--help"]
        if not args:
            args = [DEFAULT_COMMAND]
        elif args[0] not in own and args[0] not in COMMANDS:
            if not args[0].startswith("-"):
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
    _call(launch, "launch", argv)


def main_test_distributed(argv: list[str] | None = None) -> None:
    """Run `test-distributed`; this is its entry point."""
    from launcher.cli.test_distributed import command

    _call(command, "test-distributed", argv)


def _call(command: click.Command, name: str, argv: list[str] | None) -> None:
    """Run a command and exit with its code; print an error of `launch` as one line and its fix."""
    from launcher.cli.nameless_user import complete_environment

    open_closed_streams()
    complete_environment(os.environ)
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        from launcher.cli.option_errors import explain

        refused = explain(error, arguments)
        show_error(refused)
        sys.exit(refused.exit_code)
    except LauncherError as error:
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
