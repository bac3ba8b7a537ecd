"""The environment of the peers: a venv next to the running Python's packages, and what pip and apt can add to it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import distributions, version
from pathlib import Path

from bench.lab import ROOT
from bench.record import read_commit
from bench.tools import TOOLS

PLACE = ROOT / "build" / "peers"  # `make clean` removes it
PYTHON = PLACE / "bin" / "python"
PACKAGES = PLACE / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
# What the peers need besides torch, which is here already: pip would bring gigabytes of CUDA for another version.
NEEDED = (
    "setuptools", "wheel", "cloudpickle", "einops", "gevent", "hjson", "huggingface_hub", "msgpack", "ninja", "numpy",
    "packaging", "psutil", "py-cpuinfo", "pydantic", "pyyaml", "safetensors", "ssh-python", "ssh2-python", "tqdm",
    "typing-extensions",
)  # fmt: skip
INSTALL_S = 600
# Peers that aren't measured, and why.
NOT_MEASURED = {"Ray": "a cluster of its own must run first, by `ray up` or by `ray start` on each host"}


def prepare() -> dict[str, str]:
    """Make the environment; return why a tool can't be measured, by its name."""
    if not PYTHON.exists():
        print(f"bench: making {PLACE.relative_to(ROOT)} ...", file=sys.stderr)
        venv.create(PLACE, with_pip=True)
        # A path file makes this interpreter's packages, torch among them, visible there.
        shown = [path for path in sys.path if path.endswith("-packages") or (Path(path) / "torch").is_dir()]
        (PACKAGES / "shared.pth").write_text("".join(f"{path}\n" for path in shown))
        _pip("--upgrade", *NEEDED)
    missing = {}
    for tool in TOOLS.values():
        program = tool.program.split()[0] if tool.program else ""
        reason = _install(tool.distribution) if tool.distribution else ""
        if program and shutil.which(program) is None:
            reason = _apt(program)
        if reason:
            missing[tool.name] = reason
    return missing


def find_versions() -> dict[str, str]:
    """Return the version of each tool that is there, and of what they share."""
    found = {"Python": sys.version.split()[0], "torch": version("torch"), "launch": f"commit {read_commit()}"}
    for tool in TOOLS.values():
        if tool.distribution:
            found[tool.name] = _find_version(tool.distribution)
        elif tool.program:
            done = subprocess.run(tool.program.split(), capture_output=True, text=True, check=False)
            number = re.search(r"\d+\.\d[\w.]*", done.stdout + done.stderr)
            found[tool.name] = number[0] if number else "?"
    return found


def _install(name: str) -> str:
    """Return "", or why pip can't install a package."""
    return "" if _find_version(name) else _pip("--no-deps", "--no-build-isolation", "--ignore-installed", name)


def _find_version(name: str) -> str:
    found = [each.version for each in distributions(name=name, path=[str(PACKAGES)])]
    return found[0] if found else ""


def _pip(*words: str) -> str:
    return _run([PYTHON, "-m", "pip", "install", "--quiet", *words])


def _apt(name: str) -> str:
    if os.geteuid() or shutil.which("apt-get") is None:
        return f"{name} isn't installed, and there is no apt-get as root"
    return _run(["apt-get", "install", "-y", "-qq", name])


def _run(argv: Sequence[str | Path]) -> str:
    """Return "", or the last line of what a failed command printed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{argv[-1]} couldn't be installed in {INSTALL_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"
