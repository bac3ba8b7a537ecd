"""Collect what run.json records before the run starts: who typed which command, where, and the note about it."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from launcher.cli.defaults import current_directory
from launcher.cli.option_groups import OutputOptions
from launcher.job.variables import HIDDEN, hide_secrets


def describe_origin(output: OutputOptions) -> dict[str, Any]:
    """Return the first values of run.json; secrets in the command line are hidden."""
    words = map(_hide_notify, sys.argv[1:], sys.argv)
    return {
        "name": output.name,
        "note": output.note,
        "command": shlex.join([*name_program(), *hide_secrets([*words])]),
        "directory": str(current_directory()),
        "user": _user(),
        "launch_host": socket.gethostname(),
        "git": None,
    }


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
