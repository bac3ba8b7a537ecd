"""The directory of a run, as a host keeps it that has lost power."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launcher.node import system

# As a supervisor does, which dies then.
_MAKES = """
import os, sys
from launcher.node import system
from launcher.node.processes import run_folders
system.MACHINE_ID = sys.argv[2]
folder = run_folders.make_folder(sys.argv[1])
os.mkdir(folder + "/files")
print(folder)
"""


def lose_run(place: Path, run: str, machine_id: str = system.MACHINE_ID) -> Path:
    """Make its directory in this place, and return it; machine_id: the file with that of its machine."""
    words, env = [sys.executable, "-c", _MAKES, run, machine_id], {**os.environ, "TMPDIR": str(place)}
    return Path(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip())
