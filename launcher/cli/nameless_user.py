"""Set a home and a name for a user id without an entry in passwd, as with `docker run --user 1234`."""

from __future__ import annotations

import os
import pwd
from collections.abc import MutableMapping

_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where getpass.getuser looks, before it asks passwd


def complete_environment(environ: MutableMapping[str, str]) -> None:
    """Set HOME and LOGNAME if neither `environ` nor passwd has them; otherwise pathlib, paramiko and others raise."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ["HOME"] = environ.get("HOME") or "/"  # as a login and Docker do
        if not any(environ.get(name) for name in _NAMES):
            environ["LOGNAME"] = f"uid{os.getuid()}"
