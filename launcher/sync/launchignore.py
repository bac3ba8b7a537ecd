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
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import shown

NAME = ".launchignore"

_MOST_BYTES = 1 << 20
_UNTRAILED = re.compile(r"((?:[^\\]|\\.)*?) *", re.DOTALL)  # a space after a backslash belongs to the pattern
_SPECIAL = re.compile(r"[\\*?\[\]]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


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
    """Return the patterns that can match something in a directory, as that directory has to write them.

    Those that match the directory itself are none of them: whether it is sent was decided above it.
    """
    return tuple(line for pattern in patterns for line in _enter(pattern, folder.split("/")))


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


def _enter(pattern: str, names: Sequence[str]) -> Iterator[str]:
    sign, body = _split_sign(pattern)
    if not _is_anchored(body):
        yield pattern
        return
    rests = [body.strip("/").split("/")]
    for name in names:
        rests = [left for rest in rests for left in _match_first(rest, name)]
    end = "/" if body.endswith("/") else ""
    yield from (f"{sign}/{'/'.join(rest)}{end}" for rest in rests if rest)


def _match_first(parts: Sequence[str], name: str) -> Iterator[list[str]]:
    """Yield what is left of a pattern after one name of a path; `**` matches any number of names."""
    if not parts:
        return
    first, *rest = parts
    if first == "**":
        yield list(parts)
        yield from _match_first(rest, name)
    elif fnmatchcase(name, _ESCAPED.sub(_bracket, first).replace("[^", "[!")):
        yield rest


def _bracket(escaped: re.Match[str]) -> str:
    return f"[{escaped[1]}]" if escaped[1] in "*?[" else escaped[1]
