"""What was typed: by whom and where, for run.json, and the options that can be typed again."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.request import ACTIVATION, HOSTS, PYTHON, REACH, Request, name_all
from launcher.cli.options.sources import is_on_command_line
from launcher.cli.options.toml_files import current_directory
from launcher.cli.repetition import find_repetition, group_options, hide_value
from launcher.job.variables import HIDDEN, hide_secrets

_REACH = {"config", *name_all((*REACH, PYTHON, *ACTIVATION))}


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


def typed_options(is_wanted: Callable[[str], bool]) -> list[str]:
    """Return the options that were typed and whose name is wanted, as they were; of a secret in --env, only its name.

    `--env NAME` takes the value from the environment where it is typed.
    """
    context = click.get_current_context()
    typed, words = context.meta[TYPED_WORDS], context.params.get("words") or ()
    return [
        word
        for option, group in group_options(context.command, typed[: len(typed) - len(words)])
        if group[0].startswith("-") and group != ("--",) and is_wanted("" if option is None else option.name)
        for word in (hide_value(group) if option is not None and option.name == "env" else group)
    ]


def find_reach() -> list[str]:
    """Return the typed options that choose the same hosts, SSH and Python for test-distributed.

    Without --hosts or --hostfile there is none that chooses hosts, since others choose from what these name.
    """
    names_hosts = is_on_command_line("hosts") or is_on_command_line("hostfile")
    return typed_options((_REACH | {*name_all(HOSTS)} if names_hosts else _REACH).__contains__)
