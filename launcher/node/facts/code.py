"""The Python files beside and below the script on this node, as hashes: hosts with other code compute other numbers.

Only what a run is likely to import counts. The script itself has a hash of its own, so it is left out here.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict

Place = Dict[str, Any]


MOST_FILES = 2000
MOST_S = 0.4  # on a file system that responds
TIMEOUT_S = 1.5  # of the whole child: a file system may hang
UNKNOWN: dict[str, Any] = {"code_hash": None, "code_is_complete": False}
_MOST_LETTERS = 300  # of a path: 2,000 of them must fit into a message
_HASH_LETTERS = 16  # of a file's hash in a message
_PIECE_BYTES = 1 << 20
_LOOK_EVERY = 256  # entries, at the clock
_SKIPPED = ("__pycache__", "node_modules", "site-packages")


class TooMuch(Exception):
    """There are more files than are compared, or they take too long to read."""


def sum_up(place: Place) -> dict[str, Any]:
    """Return one hash over the paths and contents of all files, and whether all were read.

    place: `folder`, and `script`: its name in that directory, or None. Without the directory there is no hash.
    """
    try:
        found = _hash_files(place)
    except TooMuch:
        return UNKNOWN
    except OSError:
        return {"code_hash": None, "code_is_complete": True}
    sums = "".join("%s\0%s\n" % each for each in found)
    return {"code_hash": hashlib.sha256(os.fsencode(sums)).hexdigest(), "code_is_complete": True}


def list_files(place: Place) -> dict[str, Any]:
    """Return path and hash of each file, or None for all of them if there are too many."""
    try:
        return {"files": [[path, content[:_HASH_LETTERS]] for path, content in _hash_files(place)]}
    except (TooMuch, OSError):
        return {"files": None}


def _hash_files(place: Place) -> list[tuple[str, str]]:
    """Return path and hash of each file, sorted; raise TooMuch or, if the directory can't be read, OSError."""
    deadline = time.monotonic() + MOST_S
    root = place["folder"]
    device = os.stat(root).st_dev
    names, waiting = _scan(root, "", device, deadline)
    found = [name for name in names if name != place["script"]]
    while waiting:
        folder = waiting.pop()
        try:
            names, folders = _scan(root, folder, device, deadline)
        except OSError:  # not readable: not to be imported
            continue
        found += names
        waiting += folders
        if len(found) > MOST_FILES or any(len(path) > _MOST_LETTERS for path in names):
            raise TooMuch
    if len(found) > MOST_FILES:
        raise TooMuch
    return [(path, _hash_file(os.path.join(root, path), deadline)) for path in sorted(found)]


def _scan(root: str, folder: str, device: int, deadline: float) -> tuple[list[str], list[str]]:
    """Return the paths of the Python files in a directory, and of the directories in it that are to be read."""
    files, folders = [], []
    with os.scandir(os.path.join(root, folder)) as entries:
        for number, entry in enumerate(entries):
            if number % _LOOK_EVERY == 0:
                _look_at_clock(deadline)
            if entry.name == "pyvenv.cfg" and folder:
                return [], []
            if entry.name.startswith("."):
                continue
            try:
                if entry.name.endswith(".py") and entry.is_file():
                    files.append(os.path.join(folder, entry.name))
                elif entry.name not in _SKIPPED and _is_folder(entry, device):
                    folders.append(os.path.join(folder, entry.name))
            except OSError:  # such as a link that leads to itself
                continue
    return files, folders


def _is_folder(entry: os.DirEntry[str], device: int) -> bool:
    """Tell whether an entry is a directory on this file system: a home directory may have other machines' disks."""
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_dev == device


def _hash_file(path: str, deadline: float) -> str:
    """Return the SHA-256 of a file; a hyphen if it can't be read."""
    _look_at_clock(deadline)
    content = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while True:
                piece = file.read(_PIECE_BYTES)
                if not piece:
                    return content.hexdigest()
                content.update(piece)
                _look_at_clock(deadline)
    except OSError:
        return "-"


def _look_at_clock(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TooMuch
