"""Find the file that may set defaults, launcher.toml, and read it without knowing the options.

launcher_toml.py makes options of what is read here.
The file is in the current directory or, in a repository, above it, up to its root. Any of these directories may be
under another user's control: /tmp, a shared directory, a cloned repository.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from launcher.cli.options.file_owners import find_other_writer, show_path
from launcher.errors import UsageError

OWN_FILE = "launcher.toml"
MAX_FILE_BYTES = 1 << 20
_NO_FILE = "--config /dev/null to use no file"


@dataclass(frozen=True, slots=True)
class TomlFile:
    """The keys of one file, as they are written."""

    source: str
    content: dict[str, Any]
    folder: Path


def current_directory() -> Path:
    """Return the directory in which the command was typed; raise UsageError if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the current directory can't be read: {error.strerror}", "cd to another directory") from None


def read_named(path: Path) -> TomlFile:
    """Read the file of --config, whoever wrote it and wherever it is."""
    source = show_path(path)
    return TomlFile(source, _parse(_read(path, source), source), path.parent)


def find_file() -> TomlFile | None:
    """Return the nearest file, in this directory or above it; raise UsageError if it can't be trusted or read."""
    for place in find_places(current_directory()):
        path = place / OWN_FILE
        source = show_path(Path(os.path.relpath(path)))  # as it would be typed: `../launcher.toml`
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                continue
            doubt = _find_doubt(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UsageError(f"{source}: can't be read: {error.strerror}", f"pass {_NO_FILE}") from None
        if doubt:
            fix = f"pass --config {source} if you trust it, or {_NO_FILE}"
            raise UsageError(f"{source} is not used: {doubt}", fix)
        return TomlFile(source, _parse(_read(path, source, f"pass {_NO_FILE}"), source), place)
    return None


def find_places(folder: Path) -> list[Path]:
    """Return the directories to search: `folder`, and in a repository those above it, up to its root.

    None above that every user can write is searched, nor what is above it: anybody could put a `.git` into /tmp.
    """
    places = [folder, *takewhile(lambda above: not _is_everybody_s(above), folder.parents)]
    roots = [index for index, place in enumerate(places) if os.path.lexists(place / ".git")]
    return places[: roots[0] + 1] if roots else [folder]


def _is_everybody_s(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _find_doubt(path: Path) -> str | None:
    """Return who else could write a file that was found.

    A symlink is checked twice: in its own directory, which others may be able to write, and at its target.
    """
    places = dict.fromkeys((path.resolve(), path.parent.resolve() / path.name))
    doubts = [find_other_writer(place, os.geteuid()) for place in places]
    return next(filter(None, doubts), None)


def _read(path: Path, source: str, fix: str = "") -> bytes:
    try:
        found = path.stat()
        is_file = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)  # opening a directory says what is wrong
        if not is_file and not os.path.samestat(found, Path(os.devnull).stat()):
            raise UsageError(f"{source}: not a regular file", fix)  # reading a FIFO would block
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}", fix) from None
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{source}: larger than {MAX_FILE_BYTES >> 20} MiB")
    return content


def _parse(content: bytes, source: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    except RecursionError:
        raise UsageError(f"{source}: too many nested brackets") from None
    return parsed
