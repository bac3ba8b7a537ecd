"""What was typed: by whom and where, for run.json, and the words with which all or some of it can be typed again."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.request import ACTIVATION, HOSTS, PYTHON, REACH, Option, Request, name_all
from launcher.cli.options.sources import is_chosen, is_on_command_line, name_value, settle
from launcher.cli.options.toml_files import current_directory
from launcher.cli.repetition import find_repetition
from launcher.job.variables import HIDDEN, hide_secrets, is_secret

_OF_TEST_DISTRIBUTED = {"config", *name_all((*HOSTS, *REACH, PYTHON, *ACTIVATION))}


def describe_origin(request: Request) -> dict[str, Any]:
    """Return the first values of run.json; secrets in the command line are hidden."""
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


def own_program() -> str:
    """Return the path of this `launch`: a job's PATH may differ."""
    typed = Path(sys.argv[0])
    if typed.name != "launch":
        return str(Path(sys.executable).with_name("launch"))
    return str(typed if typed.is_absolute() else current_directory() / typed)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container
        return str(os.geteuid())


def typed_options(left_out: Collection[str] = ()) -> list[str]:
    """Return the options that were typed, as words to type again; of a secret in --env, only its name.

    `--env NAME` takes the value from the environment where it is typed.
    """
    return _as_words(click.get_current_context().params, lambda name: name not in left_out and is_on_command_line(name))


def find_reach() -> list[str]:
    """Return the options that choose the same hosts, SSH and Python for test-distributed.

    It takes everything from launcher.toml that `launch` does, except the hosts.
    """
    hosts = {name for name in name_all(HOSTS) if is_chosen(name)}
    others = {name for name in _OF_TEST_DISTRIBUTED if is_on_command_line(name)}
    settled = settle(click.get_current_context().params)
    values = {name: value for name, value in settled.items() if value or (value is False and name in others)}
    return _as_words(values, lambda name: name in values and name in hosts | others)


def _as_words(params: Mapping[str, Any], is_wanted: Callable[[str], bool]) -> list[str]:
    words: list[str] = []
    for option in click.get_current_context().command.params:
        name = str(option.name)
        if not isinstance(option, click.Option) or not is_wanted(name):
            continue
        values = params[name] if option.multiple else (params[name],)
        names = option.secondary_opts if option.secondary_opts and not values[0] else option.opts
        flag = max(names, key=len)
        for value in values:
            if option.is_flag:
                words.append(flag)
            elif isinstance(option, Option) and option.may_stand_alone:  # as one word: the value may be omitted
                words.append(f"{flag}={value and _typed(value)}")
            else:
                words += [flag, _hide_secret(name, _typed(value))]
    return words


def _typed(value: object) -> str:
    value = name_value(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _hide_secret(option: str, value: str) -> str:
    variable, _, content = value.partition("=")
    return variable if option == "env" and is_secret(variable, content) else value
