"""The lines of `.launchignore`, in gitignore syntax: git reads them as patterns of its command line, above all others.

git takes such patterns from the root of the repository. They are rewritten where `.launchignore` is elsewhere: above a
submodule, or in a directory of a repository that is sent alone. Only that is done here; what a pattern matches, git
decides.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import shown

NAME = ".launchignore"

_MOST_BYTES = 1 << 20
_UNTRAILED = re.compile(r"((?:[^\\]|\\.)*?) *", re.DOTALL)  # a space after a backslash belongs to the pattern
_SPECIAL = re.compile(r"[\\*?\[\]]")


def read_patterns(root: Path) -> tuple[str, ...]:
    """Return the patterns in the `.launchignore` of a directory, none if it has no such file; raise UsageError."""
    file = root / NAME
    try:
        data = read_small(file)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"{shown(file)} can't be read: {error.strerror}") from None
    if b"\0" in data:
        raise UsageError(f"{shown(file)} isn't a text: it has a NUL byte", "save it as UTF-8")
    lines = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).split("\n")
    return tuple(pattern for line in lines if (pattern := _read_line(line)))


def read_small(path: Path) -> bytes:
    """Return the bytes of a file that the code has; raise OSError, also if it could be endless, or hang."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it isn't a regular file")
    if found.st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def exclude_options(patterns: Sequence[str]) -> list[str]:
    """Return the options that give patterns to `git ls-files`."""
    return [f"--exclude={pattern}" for pattern in patterns]


def quote_path(path: str) -> str:
    """Return the part of a pattern that matches this path alone."""
    return _SPECIAL.sub(r"\\\g<0>", path)


def seen_from_above(patterns: Sequence[str], prefix: str) -> tuple[str, ...]:
    """Return patterns of the directory `prefix`, as the directory above has to write them."""
    if not prefix:
        return tuple(patterns)
    base = f"/{quote_path(prefix)}/"
    return tuple(
        sign + base + (body.removeprefix("/") if _is_anchored(body) else f"**/{body}")
        for sign, body in map(_split_sign, patterns)
    )


def seen_from_inside(patterns: Sequence[str], folder: str) -> tuple[str, ...]:
    """Return the patterns that hold in a repository below, as its root has to write them.

    Of those that begin at the directory above, that are those that name this one, without a wildcard.
    """
    found = []
    for sign, body in map(_split_sign, patterns):
        below = body.removeprefix("/").removeprefix(f"{quote_path(folder)}/")
        if not _is_anchored(body) or body.startswith("**/"):
            found.append(sign + body)
        elif below != body.removeprefix("/") and below:
            found.append(f"{sign}/{below}")
    return tuple(found)


def _read_line(line: str) -> str:
    line = line.removesuffix("\r")
    if line.startswith("#"):
        return ""
    untrailed = _UNTRAILED.fullmatch(line)
    return untrailed[1] if untrailed else line


def _split_sign(pattern: str) -> tuple[str, str]:
    return ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)


def _is_anchored(body: str) -> bool:
    return "/" in body.rstrip("/")
