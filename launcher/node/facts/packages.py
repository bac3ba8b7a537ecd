"""The packages of a Python on this node: names and versions, from the names of directories; nothing is imported.

importlib.metadata would read a file of each package, which takes long on a network file system.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any
from urllib.parse import unquote

from launcher.node.system import read_text

MOST_PACKAGES = 5000
TIMEOUT_S = 0.6  # of the process that lists them; on a file system that responds it takes less
UNKNOWN: dict[str, Any] = {"packages": None, "editables": {}}
_MOST_LETTERS = 100  # of a name or a version; PyPI's longest name has 80
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")  # pip renames what it is removing to ~name
_EGG_INFO = re.compile(r"(-py\d[^-]*)?\.egg-info$")


def list_packages(paths: list[str]) -> dict[str, Any]:
    """Return the version of each package by its normalized name, and where editable ones are.

    paths: directories of sys.path, in its order; Python imports the first of two versions. A version ends with
    ` (editable, a1b2c3d)` if the package is imported from a directory that is at this commit.
    """
    found: dict[str, str] = {}
    editables: dict[str, str] = {}
    for folder in dict.fromkeys(paths):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            name, version = _split(entry)
            if name is None or name in found:
                continue
            if len(found) >= MOST_PACKAGES:
                return UNKNOWN
            source = _find_source(os.path.join(folder, entry)) if entry.endswith(".dist-info") else None
            found[name] = version if source is None else "%s (%s)" % (version, _describe(source))
            if source is not None:
                editables[name] = source
    return {"packages": found, "editables": editables}


def _split(entry: str) -> tuple[str | None, str]:
    """Return the normalized name (PEP 503) and the version in `Name-1.2.dist-info` or `Name-1.2-py3.11.egg-info`."""
    if entry.endswith(".dist-info"):
        stem = entry[:-10]
    elif entry.endswith(".egg-info"):
        stem = _EGG_INFO.sub("", entry)
    else:
        return None, ""
    name, _, version = stem.rpartition("-")
    if not _NAME.fullmatch(name) or not version or len(stem) > _MOST_LETTERS:
        return None, ""
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _find_source(info: str) -> str | None:
    """Return the directory from which an editable package is imported (PEP 610); None if it isn't editable."""
    text = read_text(os.path.join(info, "direct_url.json"))
    try:
        origin = json.loads(text or "{}")
        url = origin["url"] if origin["dir_info"]["editable"] is True else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(url, str) or not url.startswith("file://"):
        return None
    return "/" + unquote(url[len("file://") :].partition("/")[2])


def _describe(source: str) -> str:
    """Return what stands behind the version of an editable package; without git, or a repository, it has no commit."""
    try:
        words = ["git", "-C", source, "rev-parse", "HEAD"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except (OSError, ValueError):  # ValueError: a path with a null byte in it
        return "editable"
    return "editable, %s" % done.stdout[:7].decode() if done.returncode == 0 else "editable"
