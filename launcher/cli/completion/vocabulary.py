"""The words of all commands: what `--help` shows of their options, values and arguments, kept on the disk.

click's own declarations are the source. What is kept of them is made again once a file of the command line has changed,
as after an update; the Tab that finds it out takes a third of a second.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher import __version__

if TYPE_CHECKING:
    import click

HOST, RUN, FILE, DIRECTORY = "host", "run", "file", "directory"
LISTS = (HOSTS, HOSTS_OF_RUN) = ("hosts", "hosts of the run")  # as the options say
# What the word in capitals of a metavar stands for.
_KINDS = {
    "HOST": HOST, "RUN": RUN, "FILE": FILE, "PATH": FILE, "SCRIPT": FILE, "CMD": FILE, "DIR": DIRECTORY,
}  # fmt: skip
_KIND = re.compile("[A-Z]+")
_OTHER_OPTIONS = "[OPTION]"  # in the metavar of an argument: options of a run may follow it
_MOST_BYTES = 1 << 22


class Value(NamedTuple):
    """What may be typed in one place: one of these words, or something of a kind; "" is any text."""

    kind: str = ""
    words: tuple[str, ...] = ()


class OptionWords(NamedTuple):
    """The names of an option and what follows them; value is None for a switch."""

    names: tuple[str, ...]
    help: str
    value: Value | None = None
    may_lack_value: bool = False  # as --sync: the next word is its value if it is a directory
    is_repeatable: bool = False

    @property
    def name(self) -> str:
        """The longest of its names."""
        return max(self.names, key=len)


class CommandWords(NamedTuple):
    """The options and arguments of one command."""

    help: str
    options: tuple[OptionWords, ...]
    arguments: tuple[Value, ...]
    repeats_argument: bool  # the last one
    ends_with_script: bool  # what follows its first argument is the script's


class Vocabulary(NamedTuple):
    """All commands by name, as JSON has them, and the one that starts without its name."""

    commands: Mapping[str, Any]
    default: str

    def find(self, name: str) -> CommandWords:
        """Return the words of a command."""
        text, options, arguments, repeats_argument, ends_with_script = self.commands[name]
        return CommandWords(
            text,
            tuple(
                OptionWords(tuple(names), help_text, value and Value(value[0], tuple(value[1])), *rest)
                for names, help_text, value, *rest in options
            ),
            tuple(Value(kind, tuple(words)) for kind, words in arguments),
            repeats_argument,
            ends_with_script,
        )

    def helps(self) -> dict[str, str]:
        """Return the names of all commands of `launch`, each with its line of help."""
        return {name: text for name, (text, *_) in self.commands.items() if text}


def read_vocabulary() -> Vocabulary:
    """Return the words that are kept in the user's cache; make them if they are missing or of another version."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if base.startswith("/") else Path.home() / ".cache"
    path, version = cache / "launch" / "completion.json", _find_version()
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with path.open("rb") as file:
            kept = json.loads(file.read(_MOST_BYTES))
        if kept["version"] == version:
            return Vocabulary(kept["commands"], kept["default"])
    return _make(path, version)


def _find_version() -> list[Any]:
    """Return what differs after each change of the command line: in a checkout the version alone doesn't."""
    folder = Path(__file__).parents[1]
    places = (folder, folder / "options", folder / "completion")
    files = [entry for place in places for entry in os.scandir(place) if entry.is_file()]
    states = sorted([entry.name, entry.stat().st_mtime_ns, entry.stat().st_size] for entry in files)
    return [__version__, str(folder), states]


def _make(path: Path, version: list[Any]) -> Vocabulary:
    from launcher.cli.command_table import DEFAULT_COMMAND
    from launcher.private_files import make_private, replace_private

    commands = dict(_describe_commands())
    kept = json.dumps({"version": version, "default": DEFAULT_COMMAND, "commands": commands})
    with suppress(OSError):  # a home directory that can't be written
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        make_private(path.parent, path.parent.parent, exist_ok=True)
        replace_private(path, kept)
    return Vocabulary(json.loads(kept)["commands"], DEFAULT_COMMAND)


def _describe_commands() -> Iterator[tuple[str, CommandWords]]:
    import click

    from launcher.cli.command_group import launch
    from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND
    from launcher.cli.test_distributed import command as test_distributed

    group = click.Context(launch, **launch.context_settings)
    for name, (_, text) in COMMANDS.items():
        command = launch.get_command(group, name)
        assert command is not None  # it is in COMMANDS
        more = launch.get_command(group, DEFAULT_COMMAND) if _takes_other_options(command) else None
        yield name, _describe(command, group, text, more)
    yield "test-distributed", _describe(test_distributed, None, "")


def _takes_other_options(command: click.Command) -> bool:
    return any(_OTHER_OPTIONS in (param.metavar or "") for param in command.params)


def _describe(
    command: click.Command, group: click.Context | None, text: str, more: click.Command | None = None
) -> CommandWords:
    """Return the words of a command; more: one whose options it takes too."""
    import click

    context = click.Context(command, parent=group, info_name=command.name, **command.context_settings)
    params = command.get_params(context)
    options = {
        param.opts[0]: param
        for param in (*params, *(more.get_params(context) if more is not None else ()))
        if isinstance(param, click.Option) and not param.hidden
    }
    arguments = [param for param in params if isinstance(param, click.Argument)]
    is_repeated = bool(arguments) and arguments[-1].nargs == -1
    return CommandWords(
        text,
        tuple(each for option in options.values() for each in _describe_option(option)),
        tuple(map(_find_value, arguments)),
        is_repeated and not _takes_other_options(command),
        not context.allow_interspersed_args,
    )


def _describe_option(option: click.Option) -> Iterator[OptionWords]:
    from launcher.cli.options.table import CodeFolder

    text = (option.help or "").split("  [")[0]
    value = None if option.is_flag else _find_value(option)
    yield OptionWords(tuple(option.opts), text, value, isinstance(option.type, CodeFolder), option.multiple)
    if option.secondary_opts:  # --no-stacks
        yield OptionWords(tuple(option.secondary_opts), f"Not {option.opts[-1]}.")


def _find_value(param: click.Parameter) -> Value:
    """Return what may be typed for an option or an argument: its choices, or what its metavar stands for."""
    import click

    if isinstance(param.type, click.Choice):
        return Value("", tuple(map(str, param.type.choices)))
    metavar = param.metavar or ""
    if listed := getattr(param, "lists", ""):
        return Value(listed)
    found = _KIND.search(metavar)
    words = tuple(word for word in metavar.split("|") if word.islower() and word.isalpha())
    return Value(_KINDS.get(found[0], "") if found else "", words)
