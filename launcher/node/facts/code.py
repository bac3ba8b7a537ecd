"""The Python files beside and below the script on this node, as one hash: hosts with other code compute other numbers.

Only what a run is likely to import counts. The script itself has a hash of its own, so it is left out here.
"""

from __future__ import annotations

import hashlib
import os
from itertools import islice
from typing import Any, Iterator

from launcher.node.facts.machine import hash_file

MOST_FILES = 2000
TIMEOUT_S = 0.6  # of the process that reads them; on a file system that responds it takes less
UNKNOWN: dict[str, Any] = {"code_hash": None}
_SKIPPED = ("__pycache__", "node_modules", "site-packages")


def sum_up(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return one hash over the paths and contents of all files; None if they are too many, or without the directory.

    wanted: the launcher's PREPARE, whose `code` has `folder`, relative to the working directory, and `script`: its name
    in there, or None.
    """
    place = wanted["code"]
    root = os.path.join(os.path.expanduser(wanted.get("workdir") or "~"), place["folder"])
    try:
        paths = sorted(islice((path for path in _find_files(root) if path != place["script"]), MOST_FILES + 1))
        found = [(path, hash_file(os.path.join(root, path)) or "-") for path in paths]
    except OSError:
        return UNKNOWN
    if len(found) > MOST_FILES:
        return UNKNOWN
    sums = "".join("%s\0%s\n" % each for each in found)
    return {"code_hash": hashlib.sha256(os.fsencode(sums)).hexdigest()}


def _find_files(root: str) -> Iterator[str]:
    """Yield the paths of the Python files below `root`, on its file system: a home may have other machines' disks."""
    device = os.stat(root).st_dev
    for base, folders, names in os.walk(root):
        if "pyvenv.cfg" in names and base != root:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _SKIPPED and _is_on(device, os.path.join(base, name))]
        for name in names:
            path = os.path.join(base, name)
            if name.endswith(".py") and not name.startswith(".") and os.path.isfile(path):
                yield os.path.relpath(path, root)


def _is_on(device: int, folder: str) -> bool:
    try:
        return not os.path.basename(folder).startswith(".") and os.lstat(folder).st_dev == device
    except OSError:  # it was removed meanwhile
        return False
