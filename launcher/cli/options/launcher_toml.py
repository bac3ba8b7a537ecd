"""launcher.toml, or [tool.launcher] in pyproject.toml: defaults for the options of every command.

The file is in the current directory or above it, up to the root of the repository or the home directory. Any of
these directories may be under another user's control: /tmp, a shared directory, a cloned repository.
"""

from __future__ import annotations

import os
import re
import reprlib
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.file_owners import Doubt, find_home, find_other_writer, show_path
from launcher.cli.options.table import FILE, KEYS, SCRIPT, Option, Place
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.wording import listed, nearest

OWN_FILE = "launcher.toml"
PYPROJECT = "pyproject.toml"
MAX_FILE_BYTES = 1 << 20
_NO_FILE = "--config /dev/null to use no file"
_TABLE = re.compile(rb"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*launcher[ \t]*[.\]]", re.MULTILINE)
_META = "launcher.defaults"


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that one file sets, by the names of the options."""

    source: str
    values: dict[str, Any]
    folder: Path | None = None  # set for a file above the current directory
    is_trusted: bool = True  # named by the user, or below the home directory


def current_directory() -> Path:
    """Return the directory in which the command was typed; raise UsageError if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the current directory can't be read: {error.strerror}", "cd to another directory") from None


def find_source(name: str) -> Defaults | None:
    """Return the file that sets the default of an option; None if no file does."""
    found: list[Defaults] = click.get_current_context().meta.get(_META, [])
    return next((defaults for defaults in reversed(found) if name in defaults.values), None)


def use_defaults(ctx: click.Context, _: click.Parameter, named: Path | None) -> Path | None:
    """Set a command's defaults, as the callback of --config, and print which file they come from."""
    from launcher.cli.error_lines import tell

    if ctx.resilient_parsing:
        return named
    found = [_read_named(named)] if named is not None else _find_defaults()
    found = [defaults for defaults in found if defaults.values]
    files = []
    for each in found:
        keys = [name.replace("_", "-") for name in each.values if _applies(name, ctx.command)]
        files += [f"{each.source} ({', '.join(keys)})"] if keys else []
    if files:
        tell(f"launch: using {' and '.join(files)}")
    ctx.meta[_META] = found
    ctx.default_map = {name: value for defaults in found for name, value in defaults.values.items()}
    return named


def _applies(name: str, command: click.Command) -> bool:
    """Tell whether a command reads a key: as an option, or as what its arguments say if they are given."""
    taken = {param.name for param in command.params}
    return name in taken or (name == "script" and "is_module" in taken) or (name == "sync" and "folder" in taken)


def _read_named(path: Path) -> Defaults:
    """Read the file of --config, whoever wrote it and wherever it is."""
    source = show_path(path)
    content = _parse(_read(path, source), source)
    if path.name != PYPROJECT:
        return _check_all(source, content)
    table = _find_table(content, source)
    if table is None:
        raise UsageError(f"{source}: it has no [tool.launcher] table")
    return _check_all(source, table)


def _find_defaults() -> list[Defaults]:
    """Return the defaults of the nearest directory that has a file; of two files, the last one wins."""
    folder = current_directory()
    for place in find_places(folder, find_home()):
        found = [*_find_pyproject(place / PYPROJECT), *_find_own(place / OWN_FILE)]
        if found:
            return found if place == folder else [_move(defaults, place) for defaults in found]
    return []


def find_places(folder: Path, home: Path | None) -> list[Path]:
    """Return the directories to search: `folder` and those above it, up to the repository's root or to `home`.

    Outside of both, or below a directory that every user can write, it is only `folder`: anybody could put a file, or a
    `.git`, into /tmp.
    """
    places: list[Path] = []
    for place in (folder, *folder.parents):
        places.append(place)
        if place == home or os.path.lexists(place / ".git"):
            return places
        try:
            if place.parent.stat().st_mode & stat.S_IWOTH:
                break
        except OSError:
            break
    return [folder]


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


def _find_own(path: Path) -> list[Defaults]:
    source = _shown(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        doubt, is_at_home = _judge(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{source}: can't be read: {error.strerror}", f"pass {_NO_FILE}") from None
    if doubt:
        raise _refused(source, doubt)
    content = _read(path, source, f"pass {_NO_FILE}")
    return [_limit(_check_all(source, _parse(content, source)), path.parent, is_at_home=is_at_home)]


def _find_pyproject(path: Path) -> list[Defaults]:
    """Return the defaults of its table; a pyproject.toml without one, or a broken one, is skipped."""
    source = _shown(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return []
        doubt, is_at_home = _judge(path)
        content = _read(path, source)
        # A file that another user can write isn't parsed: a megabyte of TOML can take hours.
        parsed = _parse(content, source) if not doubt else {}
    except (OSError, UsageError):
        return []
    if doubt and _TABLE.search(content):
        raise _refused(source, doubt)
    table = _find_table(parsed, source)
    return [_limit(_check_all(source, table), path.parent, is_at_home=is_at_home)] if table is not None else []


def _shown(path: Path) -> str:
    """Return the path as it would be typed: `launcher.toml`, or `../launcher.toml`."""
    return show_path(Path(os.path.relpath(path)))


def _judge(path: Path) -> tuple[Doubt | None, bool]:
    """Return who else could write a file that was found, and whether it is below the home directory.

    A symlink is checked twice: in its own directory, which others may be able to write, and at its target.
    """
    home, uid = find_home(), os.geteuid()
    places = dict.fromkeys((path.resolve(), path.parent.resolve() / path.name))
    doubts = [find_other_writer(place, home, uid) for place in places]
    return next(filter(None, doubts), None), all(home in place.parents for place in places)


def _refused(source: str, doubt: Doubt) -> UsageError:
    remedy = f"{doubt.remedy}, or " if doubt.remedy else ""
    return UsageError(f"{source} is not used: {doubt.text}", remedy + _trusting(source))


def _trusting(source: str) -> str:
    return f"pass --config {source} if you trust it, or {_NO_FILE}"


def _limit(defaults: Defaults, folder: Path, *, is_at_home: bool) -> Defaults:
    """Return the defaults of a file in `folder`; raise UsageError if they set what needs a file below home."""
    if is_at_home:
        return defaults
    values = defaults.values.items()
    options = [(KEYS[name], value) for name, value in values]
    risky = [
        f"`{option.flag[2:]}`" for option, value in options if option.at_home and not option.is_mild(value, folder)
    ]
    if risky:
        raise refuse_untrusted(replace(defaults, is_trusted=False), listed(risky), is_one=len(risky) == 1)
    return replace(defaults, is_trusted=False)


def refuse_untrusted(defaults: Defaults, what: str, *, is_one: bool = True) -> UsageError:
    """Return the error for what a file sets that isn't below the home directory."""
    text = f"{defaults.source}: {what} {'is' if is_one else 'are'} accepted only from a file below your home directory"
    return UsageError(text, _trusting(defaults.source))


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


def _check_all(source: str, content: dict[str, Any]) -> Defaults:
    values = {key.replace("-", "_"): value for key, value in content.items()}
    return Defaults(source, {name: _check(source, name, value) for name, value in values.items()})


def _check(file: str, name: str, value: Any) -> Any:
    """Return a value as click takes it; raise UsageError if the name or the type is wrong."""
    option = KEYS.get(name)
    if option is None and isinstance(value, dict):
        raise UsageError(f"{file}: no option {shown(name)}", "write the options at the top level, without a table")
    if option is None:
        turned_off = name.removeprefix("no_")
        near = f"{turned_off} = false" if turned_off in KEYS else nearest(name, KEYS)
        guess = f"; did you mean {near!r}?" if near else ""
        raise UsageError(f"{file}: no option {shown(name)}{guess}")
    takes_list = option.multiple or option.metavar == "LIST" or option is SCRIPT
    if takes_list and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ",".join(value) if option.metavar == "LIST" else value
    if isinstance(option.type, click.types.IntParamType) and isinstance(value, float):
        raise UsageError(f"{file}: {name} must be a whole number, got {value!r}")
    if not isinstance(value, str | int | float | bool):
        wanted = "a string or a list of strings" if takes_list else "a single value"
        raise UsageError(f"{file}: {name} must be {wanted}, got {reprlib.repr(value)}")
    return [value] if option.multiple else value


CONFIG = Option(
    ["--config"], metavar="FILE", type=FILE, is_eager=True, callback=use_defaults,
    help="Read defaults from FILE instead of launcher.toml.",
)  # fmt: skip
