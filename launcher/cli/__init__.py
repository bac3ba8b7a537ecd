"""The command line. click and rich live in this package and nowhere else; one file per command.

Commands are imported when they are called, so `launch --help` takes no time.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from launcher import __version__
from launcher.errors import LauncherError, UsageError

# name -> (module, one line for the list)
COMMANDS = {
    "run": ("launcher.cli.run", "Run SCRIPT on every host under torchrun (the default command)."),
    "singlenode": ("launcher.cli.singlenode", "Run SCRIPT on this machine only, without SSH."),
    "node": ("launcher.cli.node", "Run this machine's share of a run that is started by hand on each node."),
    "check": ("launcher.cli.check", "Compare the hosts and find what would break a run; start nothing."),
    "clean": ("launcher.cli.clean", "End what earlier runs of yours left on the hosts."),
    "exec": ("launcher.cli.exec", "Run a plain command on every host."),
    "hosts": ("launcher.cli.hosts", "Show how the hosts were read."),
    "sbatch": ("launcher.cli.sbatch", "Print or submit the same job as a Slurm batch script."),
    "demo": ("launcher.cli.demo", "Train on loopback SSH hosts of this machine, to see it work."),
}
DEFAULT_COMMAND = "run"

_EPILOG = """\b
  launch --hosts node1,node2 --gpus 8 train.py --lr 3e-4
  launch --hostfile hostfiles/two-nodes --nproc 2 --cpu train.py
  launch singlenode --gpus 4 train.py
"""


class CommandGroup(click.Group):
    """Loads commands when they are called; a first word that is no command begins the default one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "-h", "--version")
        if not args:
            args = [DEFAULT_COMMAND]
        elif args[0] not in own and args[0] not in COMMANDS:
            refuse_unknown_word(args[0])
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


def refuse_unknown_word(word: str) -> None:
    """Raise UsageError for a first word that is neither option, command nor file, before any host is asked."""
    if word in COMMANDS:
        raise UsageError(f"{word!r} is a command", f"write it first: launch {word} ...")
    if word.startswith("-") or Path(word).exists() or "/" in word or word.endswith(".py"):
        return
    import difflib

    guesses = difflib.get_close_matches(word, COMMANDS, 1)
    guess = f"; did you mean {guesses[0]!r}?" if guesses else ""
    raise UsageError(f"no file or command {word!r}{guess}", "launch --help lists the commands")


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="launch")
def launch() -> None:
    """Start PyTorch training on several machines over SSH, without a scheduler.

    `launch [OPTIONS] SCRIPT [ARGS]...` runs SCRIPT on every host; its options: `launch run --help`.
    """


def main(argv: list[str] | None = None) -> None:
    """Entry point of `launch`."""
    _call(launch, "launch", argv)


def main_test_distributed(argv: list[str] | None = None) -> None:
    """Entry point of `test-distributed`."""
    from launcher.cli.test_distributed import command

    _call(command, "test-distributed", argv)


def _call(command: click.Command, name: str, argv: list[str] | None) -> None:
    """Run a command; an error of ours is one clear line, a hint, and its exit code."""
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
        error.show()
        sys.exit(error.exit_code)
    except LauncherError as error:
        show_error(error)
        sys.exit(error.exit_code)


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that cron or a daemon closed; a socket would get its number else."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if fd > 2:
            os.close(fd)
            break
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


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
