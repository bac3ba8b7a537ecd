"""A sitecustomize of launch, which Python's site module runs before anything of the user's, in a directory of its own.

It must end with `go_on`, which runs the user's own.
"""

from __future__ import annotations

import os

# A function of the program, which has its own directory's path in a global.
GO_ON = """\
import sys


def go_on(first=()):
    sys.path[:] = [*first, *(entry for entry in sys.path if entry != FOLDER)]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
"""


def make_folder(run_folder: str, name: str, program: str) -> str:
    """Make a directory with the program as sitecustomize.py, and return it."""
    # Its name must not be guessable: a job that a rank submits to Slurm inherits PYTHONPATH, and after the run any user
    # could create a directory of that name in /tmp, from which that job's Python would import.
    folder = os.path.join(os.path.realpath(run_folder), name + "-" + os.urandom(16).hex())
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write(program)
    return folder


def put_first(folder: str, env: dict[str, str]) -> dict[str, str]:
    """Return the environment with a directory first on Python's path."""
    users = env.get("PYTHONPATH")
    return dict(env, PYTHONPATH=folder + os.pathsep + users if users else folder)
