"""UserKnownHostsFile and GlobalKnownHostsFile: from the option's value to the files that it names.

`ssh -G` gives the value as one text without quotes: `"/a b/kh" /kh2` is `/a b/kh /kh2`.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.transports.ssh.failures import Destination

_DEFAULT_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_GLOBAL_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_TOKEN = re.compile(r"%(.?)")
_BEFORE_A_PATH = re.compile(r"\s+(?=[/~%$])")


def find_files(settings: Mapping[str, str], place: Destination) -> tuple[list[Path], list[Path]]:
    """Return the user's and the global files that ssh_config sets for a host; only the former may have tokens."""
    own = [_expand(path, place) for path in read_paths(settings.get("userknownhostsfile", _DEFAULT_FILES))]
    return own, read_paths(settings.get("globalknownhostsfile", _DEFAULT_GLOBAL_FILES))


def read_paths(value: str) -> list[Path]:
    """Return the files that the option's value names.

    A space without quotes may be part of a path or separate two: the value is taken for one path if that file or its
    directory exists.
    """
    value = value.strip()
    if _is_one(value):
        words = [value]
    else:
        words = _BEFORE_A_PATH.split(value) if value.startswith(("/", "~")) else value.split()
    return [_path(word) for word in map(str.strip, words) if word not in ("", "none")]


def find_doubt(path: Path) -> str:
    """Return why no key can be recorded in a file, if its path is ambiguous; an empty text if it is clear."""
    text = str(path)
    if _is_there(path):
        return ""
    if has_tokens(path):
        return "has tokens that only ssh expands: use --transport ssh, or a path without %C and ${}"
    return "may be one file or two: create the one that you mean first" if " " in text and not _is_one(text) else ""


def has_tokens(path: Path) -> bool:
    """Tell whether a path has tokens or variables that only ssh itself expands."""
    return ("%" in str(path) or "${" in str(path)) and not _is_there(path)


def _expand(path: Path, place: Destination) -> Path:
    """Replace tokens like %h as ssh does; `ssh -G` prints them replaced.

    A path with any other token stays as it is: the value of %C, for one, depends on the version of ssh.
    """
    return Path(expand_tokens(str(path), place)) if has_tokens(path) else path


def expand_tokens(text: str, place: Destination) -> str:
    """Replace tokens like %h in the value of any option; one with a token that isn't known here stays as it is."""
    if "%" not in text:
        return text
    values = _token_values(place)
    try:
        return _TOKEN.sub(lambda found: values[found[1]], text)
    except KeyError:
        return text


def _token_values(place: Destination) -> dict[str, str]:
    import socket  # needs 3 ms, and few paths have tokens

    name = socket.gethostname()
    values = {
        "%": "%", "h": place.host.lower(), "k": place.alias.lower() if place.alias else place.name, "n": place.name,
        "p": str(place.port), "r": place.user, "i": str(os.getuid()), "l": name, "L": name.partition(".")[0],
    }  # fmt: skip
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a user id without a name, as in some containers
        return values
    return {**values, "d": entry.pw_dir, "u": entry.pw_name}


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a directory that may not be searched, a name that is too long
        return False


def _is_one(text: str) -> bool:
    """Tell whether a text with spaces is one path: that file exists, or may be created in a directory that exists."""
    path, first = _path(text), _path(text.partition(" ")[0])
    begins_with_a_file = _is_there(first) and not first.is_dir()
    return _is_there(path) or (path.is_absolute() and _is_there(path.parent) and not begins_with_a_file)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError):  # ~nobody, a zero
        return Path(text)
