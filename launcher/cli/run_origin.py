"""What run.json says of a run before anything is known of it: who typed which command, where, and for what."""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

from launcher.cli.defaults import current_directory
from launcher.cli.option_groups import OutputOptions
from launcher.job.variables import hide_secrets


def describe_origin(output: OutputOptions) -> dict[str, Any]:
    """Return the first values of run.json; secrets in the command line are hidden."""
    return {
        "name": output.name,
        "note": output.note,
        "command": shlex.join([Path(sys.argv[0]).name, *hide_secrets(sys.argv[1:])]),
        "directory": str(current_directory()),
        "user": _user(),
        "launch_host": socket.gethostname(),
        "git": None,
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's
        return str(os.geteuid())
