"""Turn --setup, --conda and --venv into steps for a node, and into commands that a person can paste.

A node runs the steps in bash, in `launcher.node.facts.setup`. This module also decides which Pythons it tries then.
Nothing here does I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.job.variables import is_secret
from launcher.node import messages

SETUP_TIMEOUT_S = 900.0  # `uv sync` or pip may have to download torch and CUDA; every 20 s a line says who waits

# Where installers put conda by default; PATH and CONDA_EXE come first.
_CONDA_FOLDERS = tuple(
    f"{base}/{name}"
    for base in ("~", "/opt", "/usr/local")
    for name in ("miniforge3", "miniconda3", "mambaforge", "anaconda3", "conda")
)

# `conda activate` is a shell function that asks the program for lines and runs them (etc/profile.d/conda.sh, and what
# `micromamba shell hook` prints); asked directly, no hook is needed. The status of those lines is that of the last
# activate.d script, which conda ignores as well.
_CONDA_SCRIPT = """\
name={name}
for tool in "${{CONDA_EXE-}}" "$(type -P conda)" {places} "${{MAMBA_EXE-}}" "$(type -P micromamba)" \
~/.local/bin/micromamba; do
  [ -x "$tool" ] && break
  tool=
done
if [ -z "$tool" ]; then
  echo "no conda on PATH, nor in ~, /opt or /usr/local; and no micromamba" >&2
  exit 127
fi
case ${{tool##*/}} in
  conda) lines=$("$tool" shell.posix activate "$name") ;;
  *) lines=$("$tool" shell activate "$name" --shell bash) ;;
esac || exit
eval "$lines"
case ${{tool##*/}} in conda) tool=${{CONDA_EXE:-$tool}} ;; esac
export LAUNCH_CONDA=$tool
"""


def setup_order(job: Job) -> dict[str, Any] | None:
    """Return the steps that a supervisor runs before it looks for a Python; None if there are none."""
    activation = job.activation
    steps = []
    if activation.setup:
        steps.append({"name": "--setup", "command": activation.setup})
    if activation.conda:
        steps.append({"name": f"--conda {activation.conda}", "command": _conda_script(activation.conda)})
    if not steps and not activation.venv:
        return None
    return {"steps": steps, "named": sorted(job.named_env), "venv": activation.venv, "timeout_s": SETUP_TIMEOUT_S}


def _conda_script(name: str) -> str:
    places = " ".join(f"{folder}/bin/conda" for folder in _CONDA_FOLDERS)
    return _CONDA_SCRIPT.format(name=shlex.quote(name), places=places)


def find_active_env(environ: Mapping[str, str]) -> str | None:
    """Return the directory of the virtual or conda environment that is active with these variables, or None.

    If both are active, as inside conda's base, return the one that comes first on PATH, where `python` is found.
    """
    folders = [environ.get(name, "").rstrip("/") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    folders = [folder for folder in folders if folder.startswith("/")]
    path = [entry.rstrip("/") for entry in environ.get("PATH", "").split(":")]
    return min(folders, key=lambda folder: _place(f"{folder}/bin", path), default=None)


def _place(folder: str, path: list[str]) -> int:
    return path.index(folder) if folder in path else len(path)


def python_of(folder: str) -> str:
    """Return the path of an environment's Python."""
    return f"{folder}/bin/python"


def candidate_pythons(job: Job, own_python: str) -> list[str]:
    """Return where a node looks for a Python with torch, in this order."""
    if not job.program.needs_torch:
        return []
    if job.python:
        return [job.python]
    if job.activation.has_python:  # if it has no torch, no other Python is tried
        return [messages.ENVIRONMENT]
    found = ["python", "python3"] if job.activation.setup else []  # what a setup has put in front of PATH
    if job.active_env:
        found.append(python_of(job.active_env))
    if str(PurePosixPath(own_python).parent) != f"{job.active_env}/bin":
        found.append(own_python)
    return list(dict.fromkeys([*found, "python3", messages.LOGIN_SHELL]))


def setup_by_hand(job: Job, fact: NodeFacts) -> list[str]:
    """Return commands that do the same when pasted into bash, to be joined by `&&`."""
    activation = job.activation
    commands = []
    if activation.setup and is_secret("", activation.setup):
        commands.append('eval "${SETUP:?must be the value of --setup}"')
    elif activation.setup:
        commands.append(f"eval {shlex.quote(activation.setup)}")  # a list of commands, perhaps
    if activation.conda:
        commands.append(_conda_by_hand(activation.conda, fact.conda or f"<conda directory on {fact.hostname}>/conda"))
    if activation.venv:
        commands.append(f"source {quote_path(f'{activation.venv}/bin/activate')}")
    return commands


def _conda_by_hand(name: str, program: str) -> str:
    path = PurePosixPath(program)
    if path.name == "conda":
        return f"source {shlex.quote(f'{path.parent}/activate')} {shlex.quote(name)}"
    return f'eval "$({shlex.quote(program)} shell activate {shlex.quote(name)} --shell bash)"'


def quote_path(path: str) -> str:
    """Quote a path for a shell, except a leading `~`, which the node's shell must expand."""
    home, slash, rest = path.partition("/")
    if not re.fullmatch(r"~[\w.-]*", home):
        return shlex.quote(path)
    return f"{home}/{shlex.quote(rest)}" if rest else home + slash
