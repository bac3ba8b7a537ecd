"""Other Pythons of this machine: those that a host may have."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from machines.patience import DEADLINE_S


@functools.cache
def find_python(version: str) -> str | None:
    """Return a Python of a version, such as 3.8, where there is one."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for path in filter(None, [*map(str, own), shutil.which(f"python{version}")]):
        done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.stdout.startswith(
            f"Python {version}."
        ):  # pyenv's own stand-ins for Pythons may only say what is missing
            return path
    return None
