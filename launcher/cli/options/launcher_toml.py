"""launcher.toml: defaults for the options of every command.

The file is in the current directory or, in a repository, above it, up to its root. Any of these directories may be
under another user's control: /tmp, a shared directory, a cloned repository.
"""

from __future__ import annotations

import os
import reprlib
import stat
import sys
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.file_owners import find_other_writer, show_path
from launcher.cli.options.request import FILE, KEYS, SCRIPT, Option, Place
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.output.output_streams import tell
from launcher.wording import nearest

_META = "launcher.defaults"
_OWN_FILE = "launcher.toml"
_NO_FILE = "--config /dev/null to use no file"


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that one file sets, by the names of the options."""

    source: str
    values: dict[str, Any]
    folder: Path | None = None  # set for a file above the current directory


def current_directory() -> Path:
    """Return the directory in which the command was typed; raise UsageError if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the current directory can't be read: {error.strerror}", "cd to another directory") from None


def find_source(name: str) -> Defaults | None:
    """Return the file that sets the default of an option; None if no file does."""
    found: Defaults | None = click.get_current_context().meta.get(_META)
    return found if found is not None and name in found.values else None


def use_defaults(ctx: click.Context, _: click.Parameter, named: Path | None) -> Path | None:
    """Set a command's defaults, as the callback of --config, and print which file they come from."""
    # A file that is named is read whoever wrote it and wherever it is.
    found = _find_file() if named is None else _read(named, show_path(named))
    if found is None:
        return named
    if keys := [name.replace("_", "-") for name in found.values if _applies(name, ctx.command)]:
        tell(f"launch: using {found.source} ({', '.join(keys)})")
    ctx.meta[_META], ctx.default_map = found, found.values
    return named


def _find_file() -> Defaults | None:
    """Return the nearest file, in this directory or above it; raise UsageError if it can't be trusted or read."""
    here = current_directory()
    for place in find_places(here):
        path = place / _OWN_FILE
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
        found = _read(path, source, f"pass {_NO_FILE}")
        return found if place == here else _move(found, place)
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


def _read(path: Path, source: str, fix: str = "") -> Defaults:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}", fix) from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    values = {key.replace("-", "_"): value for key, value in content.items()}
    return Defaults(source, {name: _check(source, name, value) for name, value in values.items()})


def _applies(name: str, command: click.Command) -> bool:
    """Tell whether a command reads a key: as an option, or as what its arguments say if they are given."""
    taken = {param.name for param in command.params}
    return name in taken or (name == "script" and "is_module" in taken)


def _move(defaults: Defaults, folder: Path) -> Defaults:
    """Return the defaults with relative paths resolved from `folder`; Pythons stay relative to a workdir."""
    by_workdir = (Place.HOSTS, Place.SEARCHED) if "workdir" in defaults.values else ()

    def move(place: Place, text: str) -> str:
        is_name = place is Place.SEARCHED and "/" not in text
        return text if is_name or not text or text.startswith("~") else str(folder / text)

    def change(name: str, value: Any) -> Any:
        place = KEYS[name].place
        if place is None or place in by_workdir or isinstance(value, bool):  # sync = true names no path
            return value
        return [move(place, text) for text in value] if isinstance(value, list) else move(place, str(value))

    moved = {name: change(name, value) for name, value in defaults.values.items()}
    return replace(defaults, values=moved, folder=folder)


def _check(file: str, name: str, value: Any) -> Any:
    """Return a value as click takes it; raise UsageError if the name or the type is wrong."""
    option = KEYS.get(name)
    if option is None and isinstance(value, dict):
        raise UsageError(f"{file}: no option {shown(name)}", "write the options at the top level, without a table")
    if option is None:
        from launcher.cli.mistakes import find_replacement

        if gone := find_replacement(None, f"--{name.replace('_', '-')}"):
            raise UsageError(f"{file}: no option {shown(name)} any more; instead: {gone}")
        turned_off = name.removeprefix("no_")
        near = f"{turned_off} = false" if turned_off in KEYS else nearest(name, KEYS)
        guess = f"; did you mean {near!r}?" if near else ""
        raise UsageError(f"{file}: no option {shown(name)}{guess}")
    takes_list = option.multiple or option.metavar == "LIST" or option is SCRIPT
    entries = value if takes_list and isinstance(value, list) else [value]
    kinds, wanted = _find_kinds(option)
    if any(type(entry) not in kinds for entry in entries):
        wanted += " or a list of strings" * takes_list
        raise UsageError(f"{file}: {name.replace('_', '-')} must be {wanted}, got {reprlib.repr(value)}")
    if option.multiple:
        return entries
    return ",".join(value) if option.metavar == "LIST" and isinstance(value, list) else value


def _find_kinds(option: Option) -> tuple[tuple[type, ...], str]:
    """Return which types of TOML an option takes, and their name; that a number is in its range, click checks."""
    if option.is_flag:
        return (bool,), "true or false"
    if option.may_stand_alone:
        own = (str,) if option.place is not None else (str, int, float)
        return (bool, *own), f"true, false or a {option.type.name}"
    if isinstance(option.type, click.types.IntParamType):
        return (int, str), "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float, str), "a number or a string"
    return (str,), "a string"


CONFIG = Option(
    ["--config"], metavar="FILE", type=FILE, is_eager=True, callback=use_defaults,
    help="Read defaults from FILE instead of launcher.toml.",
)  # fmt: skip
