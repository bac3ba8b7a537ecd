"""Find the files that may set defaults, launcher.toml and pyproject.toml, and read them without knowing the options.

launcher_toml.py makes options of what is read here.
The file is in the current directory or above it, up to the root of the repository or the last directory that is the
user's. Any of these directories may be under another user's control: /tmp, a shared directory, a cloned repository.
"""

from __future__ import annotations

import os
import re
import reprlib
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.options.file_owners import Doubt, find_other_writer, show_path
from launcher.errors import UsageError

OWN_FILE = "launcher.toml"
PYPROJECT = "pyproject.toml"
MAX_FILE_BYTES = 1 << 20
_NO_FILE = "--config /dev/null to use no file"
_TABLE = re.compile(rb"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*launcher[ \t]*[.\]]", re.MULTILINE)


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
    content = _parse(_read(path, source), source)
    if path.name == PYPROJECT:
        table = _find_table(content, source)
        if table is None:
            raise UsageError(f"{source}: it has no [tool.launcher] table")
        content = table
    return TomlFile(source, content, path.parent)


def find_files() -> list[TomlFile]:
    """Return the files of the nearest directory that has one, pyproject.toml first; raise UsageError."""
    for place in find_places(current_directory(), os.geteuid()):
        found = [*_find_pyproject(place / PYPROJECT), *_find_own(place / OWN_FILE)]
        if found:
            return found
    return []


def find_places(folder: Path, uid: int) -> list[Path]:
    """Return the directories to search: `folder` and those above it, up to the repository's root.

    Outside of a repository, those above it end where one isn't the user's. None that every user can write is searched,
    nor what is above it: anybody could put a file, or a `.git`, into /tmp.
    """
    places, own = [folder], 1
    for above in folder.parents:
        if os.path.lexists(places[-1] / ".git"):
            return places
        try:
            found = above.stat()
        except OSError:
            break
        if found.st_mode & stat.S_IWOTH:
            break
        own += found.st_uid == uid and own == len(places)
        places.append(above)
    return places[:own]


def _find_own(path: Path) -> list[TomlFile]:
    source = _shown(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        doubt = _find_doubt(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}", f"pass {_NO_FILE}") from None
    if doubt:
        raise _refused(source, doubt)
    content = _read(path, source, f"pass {_NO_FILE}")
    return [TomlFile(source, _parse(content, source), path.parent)]


def _find_pyproject(path: Path) -> list[TomlFile]:
    """Return its table; a pyproject.toml without one, or a broken one, is skipped."""
    source = _shown(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        doubt = _find_doubt(path)
        content = _read(path, source)
        if b"launcher" not in content:  # most have no table, and to parse one takes 10 ms
            return []
        # A file that another user can write isn't parsed: a megabyte of TOML can take hours.
        parsed = _parse(content, source) if not doubt else {}
    except (OSError, UsageError):
        return []
    if doubt and _TABLE.search(content):
        raise _refused(source, doubt)
    table = _find_table(parsed, source)
    return [TomlFile(source, table, path.parent)] if table is not None else []


def _shown(path: Path) -> str:
    """Return the path as it would be typed: `launcher.toml`, or `../launcher.toml`."""
    return show_path(Path(os.path.relpath(path)))


def _find_doubt(path: Path) -> Doubt | None:
    """Return who else could write a file that was found.

    A symlink is checked twice: in its own directory, which others may be able to write, and at its target.
    """
    places = dict.fromkeys((path.resolve(), path.parent.resolve() / path.name))
    doubts = [find_other_writer(place, os.geteuid()) for place in places]
    return next(filter(None, doubts), None)


def _refused(source: str, doubt: Doubt) -> UsageError:
    remedy = f"{doubt.remedy}, or " if doubt.remedy else ""
    fix = f"{remedy}pass --config {source} if you trust it, or {_NO_FILE}"
    return UsageError(f"{source} is not used: {doubt.text}", fix)


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


def _find_table(content: dict[str, Any], source: str) -> dict[str, Any] | None:
    table: Any = content
    for key in ("tool", "launcher"):
        table = table.get(key) if isinstance(table, dict) else {}
        if table is None:
            return None
    if not isinstance(table, dict):
        raise UsageError(f"{source}: [tool.launcher] must be a table, got {reprlib.repr(table)}")
    return table
