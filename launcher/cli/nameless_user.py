"""A user id without an entry in passwd, as `docker run --user 1234` gives one: home and name for all that asks."""

from __future__ import annotations

import os
import pwd
from collections.abc import MutableMapping

_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where getpass.getuser looks, before it asks passwd


def complete_environment(environ: MutableMapping[str, str]) -> None:
    """Set HOME and LOGNAME where neither `environ` nor passwd knows them; pathlib, paramiko and others raise else."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ["HOME"] = environ.get("HOME") or "/"  # as a login and Docker do it
        if not any(environ.get(name) for name in _NAMES):
            environ["LOGNAME"] = f"uid{os.getuid()}"
