"""Write the table of all options into docs/configuration.md, and their types for Python into launcher/api.

Both are made from the commands' own declarations: .venv/bin/python docs/options_table.py
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

import click

from launcher.cli import main as cli
from launcher.cli.test_distributed import command as test_distributed

PAGE = Path(__file__).parent / "configuration.md"
TYPES = Path(__file__).parents[1] / "launcher" / "api" / "option_types.py"
BEGIN = "<!-- made by docs/options_table.py -->"
END = "<!-- end -->"
MAIN = "run"
_DEFAULT = re.compile(r" *\[(default[^\]]*|required)\]$")


def make_tables() -> str:
    """Return two tables as Markdown: the options of a run, and what other commands have besides."""
    commands: dict[tuple[str, str], list[str]] = {}
    for name, names, text in _find_options():
        commands.setdefault((names, text), []).append(name)
    of_a_run = {key: others for key, others in commands.items() if MAIN in others}
    others = {key: names for key, names in commands.items() if MAIN not in names}
    lines = ["### Options of a run", "", "| option | effect | default | also of |", "|---|---|---|---|"]
    for (names, text), owners in sorted(of_a_run.items(), key=_by_option):
        lines.append(_row(names, text, [owner for owner in owners if owner != MAIN]))
    lines += ["", "### Options of other commands", "", "| option | effect | default | of |", "|---|---|---|---|"]
    lines += [_row(names, text, owners) for (names, text), owners in sorted(others.items(), key=_by_option)]
    return "\n".join(lines)


def update(text: str) -> str:
    """Return the page's text with the tables as they are now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{make_tables()}\n\n{END}{after}"


def _find_options() -> Iterator[tuple[str, str, str]]:
    """Yield the command, the names with their value, and the help of each option that --help of a command shows."""
    group = click.Context(cli.launch, **cli.launch.context_settings)
    for name in cli.launch.list_commands(group):
        command = cli.launch.get_command(group, name)
        assert command is not None
        yield from _find_options_of(name, command, group)
    yield from _find_options_of("test-distributed", test_distributed, None)


def _find_options_of(name: str, command: click.Command, group: click.Context | None) -> Iterator[tuple[str, str, str]]:
    context = click.Context(command, parent=group, info_name=name, **command.context_settings)
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None and not {"-h", "--help"} & {*param.opts}:
            yield name, *record


def _row(names: str, text: str, owners: list[str]) -> str:
    found = _DEFAULT.search(text)
    default = found[1].removeprefix("default").removeprefix(":").strip() if found else ""
    cells = (f"`{names}`", _DEFAULT.sub("", text), default, ", ".join(f"`{owner}`" for owner in owners))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _by_option(item: tuple[tuple[str, str], list[str]]) -> tuple[str, str, list[str]]:
    """Sort by the first long name."""
    (names, text), owners = item
    longs = [word for word in re.split(r"[ ,/]+", names) if word.startswith("--")]
    return (longs[0] if longs else names, text, owners)


# ---- for Python ------------------------------------------------------------------------------------------------------

# The commands that functions start, and options that these set themselves.
FUNCTIONS = ("run", "singlenode", "check", "free", "hosts")
OWN = ("json", "dry_run")
_HEAD = '''\
"""The options of the functions by their names, for editors and type checkers; docs/options_table.py writes this."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

Switch = bool | None
Text = str | None
Number = int | None
Time = float | str | None  # in seconds, or such as "10m"
Size = int | str | None  # in bytes, or such as "2GB"
File = str | os.PathLike[str] | None
Texts = str | Sequence[str] | None
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
'''
_OTHER_TYPES = {
    "env": "str | Sequence[str] | Mapping[str, str | int | float | None] | None",
    "gpus": 'int | Literal["auto"] | None',
    "queue": "bool | float | str | None",
    "ranks": "int | str | Sequence[int] | Sequence[str] | None",
    "sync": "bool | str | os.PathLike[str] | None",
}


def make_types() -> str:
    """Return the module of the types."""
    group, found = click.Context(cli.launch), {"same_code": "Switch"}
    for name in FUNCTIONS:
        command = cli.launch.get_command(group, name)
        assert command is not None
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        found |= {_name(each): _find_type(each) for each in options if name != "run" or _name(each) != "check"}
    fields = [f"    {name}: {text}\n" for name, text in sorted(found.items()) if name not in OWN]
    doc = '    """Options of all functions; a command refuses those that it lacks."""'
    return f"{_HEAD}\n\nclass Options(TypedDict, total=False):\n{doc}\n\n{''.join(fields)}"


def _name(option: click.Option) -> str:
    name = max(option.opts, key=len)[2:].replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def _find_type(option: click.Option) -> str:
    """Return what Python may pass for an option."""
    name, place = _name(option), getattr(option, "place", None)
    if name in _OTHER_TYPES:
        return _OTHER_TYPES[name]
    if option.is_flag:
        return "Switch"
    if isinstance(option.type, click.Choice):
        return f"Literal[{', '.join(map(json.dumps, option.type.choices))}] | None"
    if place is not None or option.metavar in ("DIR", "FILE", "PATH"):
        return "Files" if option.multiple else "File"
    if option.multiple or option.metavar == "LIST":
        return "Texts"
    kinds = {"integer": "Number", "integer range": "Number", "time": "Time", "size": "Size"}
    return kinds.get(option.type.name, "Text")


if __name__ == "__main__":
    TYPES.write_text(make_types(), "utf-8")
    PAGE.write_text(update(PAGE.read_text("utf-8")), "utf-8")
