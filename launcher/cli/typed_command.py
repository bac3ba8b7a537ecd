"""What was typed: by whom and where, for run.json, and as values that can be kept, changed and typed again."""

from __future__ import annotations

import importlib
import os
import pwd
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND
from launcher.cli.mistakes import part_words
from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.launcher_toml import current_directory
from launcher.cli.options.request import Option, Request, settle_words
from launcher.job.variables import HIDDEN, hide_secrets, is_secret


@dataclass(frozen=True, slots=True)
class Typed:
    """A command line: the values of the options that were typed, as text, and the program with its arguments."""

    command: str
    options: Mapping[str, Any]  # by name: a text, of a switch whether it is on, of a list all its texts
    words: tuple[str, ...]

    @property
    def rest(self) -> list[str]:
        """The words after the name of the command."""
        return [*write_options(load_command(self.command), self.options), *part_words(self.words)]

    @property
    def line(self) -> list[str]:
        """The words to type, after `launch`."""
        return [*([] if self.command == DEFAULT_COMMAND else [self.command]), *self.rest]


def load_command(name: str) -> click.Command:
    """Return a command of `launch`."""
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    return command


def parse_options(command: click.Command, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options among these words as text, by their names, and the other words."""
    context = click.Context(command, info_name=f"launch {command.name}", **command.context_settings)
    settled = settle_words(words, [each for each in command.params if isinstance(each, click.Option)])
    found, rest, _ = command.make_parser(context).parse_args(settled)
    names = {each.name for each in command.params if isinstance(each, Option)}
    script = found.get("words", ())  # click has a sentinel for none
    rest += script if isinstance(script, list | tuple) else ()
    return {name: value for name, value in found.items() if name in names}, rest


def write_options(command: click.Command, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words for the values of options."""
    options = {each.name: each for each in command.params if isinstance(each, Option)}
    for name, value in values.items():
        if name not in options:  # an earlier version had it
            flag = f"--{name.replace('_', '-')}"
            raise click.NoSuchOption(flag, ctx=click.Context(command, info_name=f"launch {command.name}"))
        option = options[name]
        if option.is_flag:
            yield (option.opts if value else option.secondary_opts)[0]
            continue
        for text in value if option.multiple else [value]:
            is_apart = text and not text.startswith("-") and not option.may_stand_alone
            yield from (option.flag, text) if is_apart else (f"{option.flag}={text}",)


def read_typed() -> Typed:
    """Return what was typed for this command, without secrets."""
    context = click.get_current_context()
    words, found = tuple(context.params.get("words") or ()), _parse_typed(context)
    options = {each.name: each for each in context.command.params if isinstance(each, Option)}
    kept = {name: _hide(options[name], value) for name, value in found.items()}
    return Typed(str(context.command.name), kept, tuple(hide_secrets(words)))


def _parse_typed(context: click.Context) -> dict[str, Any]:
    typed, words = context.meta.get(TYPED_WORDS, ()), context.params.get("words") or ()
    return parse_options(context.command, typed[: len(typed) - len(words)])[0]


def _hide(option: Option, value: Any) -> Any:
    """Return the value of an option without secrets; of a secret in --env, its name: the value is taken from there."""
    if option.name == "env":
        return [_hide_variable(text) for text in value]
    if isinstance(value, bool):
        return value
    texts = value if option.multiple else [value]
    hidden = [HIDDEN if option.is_secret else hide_secrets([option.flag, each])[1] for each in texts]
    return hidden if option.multiple else hidden[0]


def _hide_variable(text: str) -> str:
    name, equals, value = text.partition("=")
    return name if equals and is_secret(name, value) else text


def typed_options(is_wanted: Callable[[str], bool]) -> list[str]:
    """Return the options that were typed and whose name is wanted, to type again; of a secret in --env, only its name.

    `--env NAME` takes the value from the environment where it is typed.
    """
    context = click.get_current_context()
    found = _parse_typed(context)
    if "env" in found:
        found["env"] = [_hide_variable(text) for text in found["env"]]
    return [*write_options(context.command, {name: value for name, value in found.items() if is_wanted(name)})]


def describe_origin(request: Request) -> dict[str, Any]:
    """Return the first values of run.json; secrets in the command line are hidden."""
    from launcher.cli.repetition import find_repetition

    repetition = find_repetition()
    return {
        "name": request.name,
        "command": shlex.join([*name_program(), *hide_typed(sys.argv[1:])]),
        "directory": str(current_directory()),
        "user": _user(),
        "launch_host": socket.gethostname(),
        "git": None,
        "again_of": repetition.run_id if repetition is not None else None,
    }


def hide_typed(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `***` for each secret."""
    return hide_secrets([*map(_hide_notify, words, ["", *words])])


def _hide_notify(word: str, before: str) -> str:
    """Return a word without the command of --notify, also one that a later --notify replaces.

    A webhook is a secret, whatever it looks like.
    """
    if word.startswith("--notify="):
        return f"--notify={HIDDEN}"
    return HIDDEN if before == "--notify" else word


def name_program() -> list[str]:
    """Return the words that start this program again: `launch`, its path, or `python -m launcher`."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return [sys.orig_argv[0], "-m", typed.parent.name]
    return [typed.name if shutil.which(typed.name) == sys.argv[0] else sys.argv[0]]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container
        return str(os.geteuid())
