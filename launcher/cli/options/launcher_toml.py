"""launcher.toml: defaults for the options of every command."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.request import FILE, KEYS, SCRIPT, Option, Place
from launcher.cli.options.toml_files import TomlFile, current_directory, find_file, read_named
from launcher.errors import UsageError
from launcher.hosts.ranges import shown
from launcher.wording import nearest

_META = "launcher.defaults"


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that one file sets, by the names of the options."""

    source: str
    values: dict[str, Any]
    folder: Path | None = None  # set for a file above the current directory


def find_source(name: str) -> Defaults | None:
    """Return the file that sets the default of an option; None if no file does."""
    found: Defaults | None = click.get_current_context().meta.get(_META)
    return found if found is not None and name in found.values else None


def use_defaults(ctx: click.Context, _: click.Parameter, named: Path | None) -> Path | None:
    """Set a command's defaults, as the callback of --config, and print which file they come from."""
    from launcher.cli.error_lines import tell

    file = read_named(named) if named is not None else find_file()
    if file is None:
        return named
    found = _check_all(file)
    if named is None and file.folder != current_directory():
        found = _move(found, file.folder)
    if keys := [name.replace("_", "-") for name in found.values if _applies(name, ctx.command)]:
        tell(f"launch: using {found.source} ({', '.join(keys)})")
    ctx.meta[_META], ctx.default_map = found, found.values
    return named


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


def _check_all(file: TomlFile) -> Defaults:
    values = {key.replace("-", "_"): value for key, value in file.content.items()}
    checked = {name: _check(file.source, name, value) for name, value in values.items()}
    return Defaults(file.source, checked)


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
    if any("\0" in str(entry) for entry in entries):
        raise UsageError(f"{file}: {name.replace('_', '-')} contains a NUL character, got {reprlib.repr(value)}")
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
