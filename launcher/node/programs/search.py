"""The search for torch: tell which one this Python has."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys

from launcher.node.programs.entry import ANSWER_FD


def main() -> bool:
    """Tell it as a line of JSON; return whether there is one, and torchrun is wanted."""
    told = describe()
    with os.fdopen(ANSWER_FD, "w") as status:
        status.write(json.dumps(told) + "\n")
    return told["torch"] is not None and sys.argv[1:2] == ["torchrun"]


def describe() -> dict[str, object]:
    """Describe this Python and its torch, without importing it."""
    found = importlib.util.find_spec("torch")
    folder = found.submodule_search_locations[0] if found and found.submodule_search_locations else None
    return {
        "python": sys.executable,
        "version": "%d.%d.%d" % sys.version_info[:3],
        "is_warmable": hasattr(sys, "launch_is_heard"),
        "site": [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")][:64],
        **(describe_torch(folder) if folder else {"torch": None}),
    }


def describe_torch(folder: str) -> dict[str, str | None]:
    """Describe the torch in a directory by its version.py, and what was installed beside it."""
    try:
        with open(os.path.join(folder, "version.py")) as file:
            text = file.read()
    except OSError:
        text = ""
    # importlib.metadata would take 20 ms; pip names the directory beside a package after its version.
    try:
        beside = os.listdir(os.path.dirname(folder))
    except OSError:
        beside = []
    cuda = _read_version(text, "cuda")
    return {
        "torch": _read_version(text, "__version__") or "unknown",
        "cuda": cuda,
        "hip": _read_version(text, "hip"),
        # Another torch may have left an NCCL for its own CUDA.
        "nccl": _find_version(beside, "nvidia_nccl_cu" + (cuda or "").split(".")[0]),
        "numpy": _find_version(beside, "numpy"),
    }


def _read_version(text: str, name: str) -> str | None:
    """Return a value of version.py, as in: cuda: Optional[str] = '12.8'."""
    line = re.search(r"^%s\b[^=\n]*=\s*(['\"])(.*?)\1" % name, text, re.M)
    return line and line.group(2)


def _find_version(beside: list[str], name: str) -> str | None:
    for entry in beside:
        if entry.startswith(name + "-") and entry.endswith(".dist-info"):
            return entry[len(name) + 1 : -len(".dist-info")]
    return None
