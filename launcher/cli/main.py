"""The entry points of `launch` and `test-distributed`, and how their errors are worded.

Commands are imported only when they are called, so `launch --help` is quick.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence

import click
from click.core import ParameterSource

from launcher import __version__
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES, GROUPS
from launcher.cli.error_lines import show_error
from launcher.errors import LauncherError, UsageError
from launcher.job.job import TRAINER_MODULE
from launcher.wording import nearest

# Where getpass.getuser looks, before it asks passwd.
_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_VALUE = re.compile(r"(.*) is not (?:in the range|a valid integer)", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


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

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help in 23 lines, so that all of it fits on a small terminal."""
        self.format_usage(ctx, formatter)
        formatter.write(f"  {self.help}\n")
        for heading, entries in GROUPS.items():
            names = [f"{heading}:", *[""] * (len(entries) - 1)]
            for label, (name, (_, text)) in zip(names, entries.items(), strict=True):
                formatter.write(f"{label:<9}{name:<12}{text}\n")
        formatter.write("Example (options: launch COMMAND --help; version: launch --version):\n")
        for line in EXAMPLES["launch"]:
            formatter.write(f"  {line}\n")

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
                from launcher.cli.misplaced_words import refuse_first_word

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


def explain(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """Return the same error as one line and a fix; `words` is what was typed."""
    from launcher.cli.options.sources import missing

    context = error.ctx if isinstance(error, click.UsageError) else None
    fix = f"see {context.command_path} --help for the options" if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        return _explain_option(error, words, fix)
    if isinstance(error, click.MissingParameter):
        name = str(error.param.name) if error.param is not None else ""
        return missing(f"{_name(error)} is missing", fix, [name], context)
    if isinstance(error, click.BadParameter):
        source = _find_file(error, context)
        if source is not None and error.param is not None:
            text = _describe_value(error)
            key = str(error.param.name).replace("_", "-") + ("" if text.startswith("must ") else ":")
            return UsageError(f"{source}: {key} {text}")
        return UsageError(f"{_name(error)}: {_describe_value(error)}", fix)
    if isinstance(error, click.BadOptionUsage):
        needs = "needs a value" if "requires" in error.message else "takes no value"
        return UsageError(f"{error.option_name} {needs}", fix)
    extra = _EXTRA.match(error.message)
    if extra is None or context is None:
        return UsageError(error.format_message().rstrip("."), fix)
    has_hosts = any(option.name == "hosts" for option in context.command.params)
    hosts_fix = f"name hosts with --hosts: {context.command_path} --hosts {extra[1].split()[0]}"
    return UsageError(f"{context.command_path} takes no argument, got {extra[1]!r}", hosts_fix if has_hosts else fix)


def _find_file(error: click.BadParameter, context: click.Context | None) -> str | None:
    """Return the file that a wrong value comes from; None if it was typed."""
    from launcher.cli.options.launcher_toml import find_source

    name = str(error.param.name) if error.param is not None else ""
    if context is None or context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return None
    with context:
        defaults = find_source(name)
    return defaults.source if defaults is not None else None


def _explain_option(error: click.NoSuchOption, words: Sequence[str], fix: str) -> UsageError:
    known = [name for option in error.ctx.command.params for name in option.opts] if error.ctx is not None else []
    names = {name.lstrip("-"): name for name in known if name.startswith("--")}
    name = error.option_name
    if not name.startswith("--"):  # click reads -hosts as the letters h, o, s, t and s
        whole = [word.partition("=")[0] for word in words if re.match(r"-[A-Za-z]{2}", word) and name[1] in word]
        name = next((word for word in whole if word[1:] in names), name)
    guess = _guess(name.lstrip("-").replace("_", "-"), names)
    if guess is None and error.ctx is not None and any(param.name == "is_module" for param in error.ctx.command.params):
        fix += f"; put options of the built-in trainer after -m {TRAINER_MODULE}"
    return UsageError(f"no option {name!r}" + (f"; did you mean {names[guess]!r}?" if guess else ""), fix)


def _guess(word: str, names: Mapping[str, str]) -> str | None:
    """Return the option that was meant, even if it was written as in another launcher."""
    from launcher.cli.options.table import OPTIONS

    word = next((option.flag[2:] for option in OPTIONS.values() if word in option.known_as), word)
    return word if word in names else nearest(word, names)


def _name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint or "an option")
    return max(error.param.opts, key=len) if isinstance(error.param, click.Option) else str(error.param.metavar)


def _describe_value(error: click.BadParameter) -> str:
    kind, found = getattr(error.param, "type", None), _VALUE.match(error.message)
    if found is None or not isinstance(kind, click.IntRange):
        return error.message.rstrip(".")
    span = f"from {kind.min} to {kind.max}" if kind.max is not None else f"of at least {kind.min}"
    return f"must be a whole number {span}, got {found[1].strip(chr(39))}"
