"""Turn a frozen dataclass into options: each field is a key of a YAML or JSON file and a flag.

`option` describes a field (its help, its range) where the field is defined; a wrong value raises a `ConfigError`
of one line. Nothing here knows what the options mean.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # Python 3.8 has no such types
    Fields = Mapping[str, "Field[Any]"]

MAX_FILE_BYTES = 128 << 10  # PyYAML needs seconds for a megabyte
INT_LIMIT = 2**31  # far beyond any sensible count; sums of such numbers still fit into torch's 64 bits
_SHOWN_LENGTH = 100
_RENAMED_SHOWN = 8
_TYPO = 0.8  # how similar a typo must be to a name: `train` isn't taken for track
_VALIDATION_SECTIONS = ("val", "validation", "eval", "evaluation", "test")
_VALIDATION_PREFIXES = ("validation_", "evaluate_")  # of options that such a section may set
_NO_VALUES = "a value in it can't be read: a wrong date, or too many digits or brackets"


class ConfigError(ValueError):
    """A wrong option; every rank raises the same error."""


class RunError(Exception):
    """The one-line reason why a run failed after it started; the exit code is 1."""


class UnreadableFileError(ConfigError):
    """A file can't be read on this host; other hosts may be able to read it."""


def option(
    default: Any,
    text: str,
    *,
    metavar: str = "",
    minimum: float = 0,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    instead_of: str = "",
    group: str = "",
    bare: str = "",
    aliases: tuple[str, ...] = (),
    elsewhere: str = "",
    pattern: str = "",
) -> Any:
    """Describe one field: its type is its default's, and a number must be at least `minimum` and below `below`.

    Without `below` a whole number must be below `INT_LIMIT`.
    A text must match all of `pattern`, if there is one; the metavar says how to write it.
    Its flag overrides a file's value of the field `instead_of`, and means `bare` if it has no value.
    `aliases` are names that other tools use for it; they are accepted as well. `elsewhere` is what to say of its value
    in a file that looks as if it was written for another tool, to which the value means something else.
    In the help `group` starts a group of options with this heading, from this field on.
    """
    metavar = metavar or ("N" if isinstance(default, int) else "X")
    if below is None:
        below = INT_LIMIT if isinstance(default, int) else math.inf
    rules = {"help": text, "metavar": metavar, "minimum": minimum, "below": below, "choices": choices}
    metadata = {**rules, "instead_of": instead_of, "bare": bare, "aliases": aliases, "group": group}
    metadata.update(elsewhere=elsewhere, pattern=pattern)
    return field(default=default, metadata=metadata)


def read_values(fields: Fields, argv: list[str], about: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the values of the fields on the command line and in the file that it names; a flag wins over the file.

    tell: called with a line about aliases that were read as fields.
    """
    flags = parse_flags(fields, argv, about, tell)
    path = flags.pop("config", None)
    overruled = {*flags, *(fields[name].metadata["instead_of"] for name in flags)}
    values = read_file(fields, path, tell, overruled) if path is not None else {}
    for name in overruled:
        values.pop(name, None)
    for name, given in flags.items():
        values[name] = convert(fields[name], flag(name), given)
    return values


def parse_flags(fields: Fields, argv: list[str], about: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the flags that were given, each as text or a boolean; `--batch_size` and `--batch-size` are the same."""
    words = [flag(word[2:]) if word.startswith("--") else word for word in argv]
    known, others = build_parser(fields, about).parse_known_args(words)
    aliases = {flag(alias): flag(name) for name, field in fields.items() for alias in field.metadata["aliases"]}
    typed = dict.fromkeys(word.partition("=")[0] for word in words)
    tell_names([(word, aliases[word]) for word in typed if word in aliases], tell)
    if others:
        word = others[0].partition("=")[0]
        if not word.startswith("-"):
            raise ConfigError(f"unexpected argument {word!r}")
        names = {name: name for name in ("--config", *map(flag, fields))}
        raise ConfigError(f"unknown option {word!r}{_guess(word, names | aliases)}")
    return vars(known)


def read_file(
    fields: Fields, path: str, tell: Callable[[str], None], overruled: Collection[str] = ()
) -> dict[str, Any]:
    """Read a YAML or JSON file of `key: value` lines, which may be in sections; errors start with the file's name.

    overruled: the fields whose values in the file don't count, since flags set them.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableFileError(f"{path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 10} KiB, too large for a configuration file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    content = _parse_json(path, text) if path.endswith(".json") else _parse_yaml(path, text)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected lines like 'lr: 0.003', got a {type(content).__name__}")
    names = {name: name for name in fields}
    names.update({alias: name for name, field in fields.items() for alias in field.metadata["aliases"]})
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for raw_key, value in list_keys(content):
        key = raw_key if raw_key.isprintable() else repr(raw_key)[1:-1]
        word = key.rpartition(".")[2].replace("-", "_")
        name = names.get(word, "")
        _refuse_section(path, key, value, name)
        if not name:
            raise ConfigError(f"{path}: unknown key {_shown(key)}{_guess(word, names)}")
        if name in keys:
            raise ConfigError(f"{path}: {keys[name]} and {key} are the same option; fix: give one of them")
        keys[name], values[name] = key, convert(fields[name], f"{path}: {key}", value)
    renamed = [(key, name) for name, key in keys.items() if key.replace("-", "_") != name]
    tell_names(renamed, tell, f"{path}: ")
    for name in keys if renamed else ():
        if (elsewhere := fields[name].metadata["elsewhere"]) and name not in overruled:
            tell(f"{path}: {keys[name]} {values[name]} {elsewhere.format(values[name])}")
    return values


def list_keys(content: dict[Any, object]) -> Iterator[tuple[str, object]]:
    """Yield each key with its value; a key in a section starts with the section's name, as in `train.batch_size`."""
    rest = [(str(key), value) for key, value in reversed(content.items())]
    while rest:  # a loop, since a file may nest more sections than Python can nest calls
        key, value = rest.pop()
        if isinstance(value, dict) and value:
            rest += [(f"{key}.{inner}", value[inner]) for inner in reversed(value)]
        else:
            yield key, value


def _refuse_section(path: str, key: str, value: object, name: str) -> None:
    """Raise ConfigError for an empty section, and for a section of validation that would set an option of training."""
    if not name and value in (None, {}):
        raise ConfigError(f"{path}: the section {_shown(key)} is empty; fix: remove it, or indent its keys below it")
    for section in key.split(".")[:-1]:
        if name and section.lower() in _VALIDATION_SECTIONS and not name.startswith(_VALIDATION_PREFIXES):
            raise ConfigError(f"{path}: {key} would set {name} for training; fix: move it out of {_shown(section)}")


def tell_names(renamed: Sequence[tuple[str, str]], tell: Callable[[str], None], start: str = "") -> None:
    """Report in one line which names were read as which options."""
    if renamed:
        more = len(renamed) - _RENAMED_SHOWN
        pairs = ", ".join(f"{word} as {name}" for word, name in renamed[:_RENAMED_SHOWN])
        tell(f"{start}read {pairs}{f' and {more} more' if more > 0 else ''}")


def convert(described: Field[Any], where: str, value: object) -> object:
    """Convert `value` to the type of the field, and check its range; an error starts with `where`.

    Text is converted to a number if the field is one: flags are text, and so is `3e-3` to YAML 1.1.
    """
    default, rules = described.default, described.metadata
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false, got {_shown(value)}")
        return value
    if isinstance(default, str):
        if isinstance(value, bool) and (word := "on" if value else "off") in rules["choices"]:
            return word  # YAML 1.1 reads on and off as booleans
        if isinstance(value, int) and not isinstance(value, bool) and rules["pattern"]:
            value = str(value)  # YAML reads it as a number
        if not isinstance(value, str):
            raise ConfigError(f"{where} must be text, got {_shown(value)}")
        if rules["pattern"] and not re.fullmatch(rules["pattern"], value):
            raise ConfigError(f"{where} must be {rules['metavar']}, got {_shown(value)}")
        if rules["choices"] and value not in rules["choices"]:
            raise ConfigError(f"{where} must be one of {', '.join(rules['choices'])}, got {_shown(value)}")
        return value
    wanted: type[int] | type[float] = int if isinstance(default, int) else float
    number = _number(value, wanted)
    if number is None:
        kind = "a whole number" if wanted is int else "a number"
        raise ConfigError(f"{where} must be {kind}, got {_shown(value)}")
    if number < rules["minimum"]:
        raise ConfigError(f"{where} must be at least {rules['minimum']}, got {value}")
    if number >= rules["below"]:
        raise ConfigError(f"{where} must be below {rules['below']}, got {value}")
    return number


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError, so that one rank can print one line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage on every rank."""
        raise ConfigError(message)


def build_parser(fields: Fields, about: str) -> argparse.ArgumentParser:
    """Build a parser with one flag per field; a flag that isn't given is absent from the result.

    about: a sentence that says what the program does, and its examples after an empty line.
    """
    description, _, examples = about.partition("\n\n")
    parser = Parser(
        prog="python -m launcher.trainer",
        usage="%(prog)s [OPTIONS]",
        description=description,
        epilog=f"{examples}\n\nUnderscores work as well as dashes: --batch_size 32.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    group = parser.add_argument_group("General")
    group.add_argument("-h", "--help", action="help", help="show this message and exit")
    group.add_argument("--config", metavar="FILE", help="YAML or JSON file with any of the options below")
    for name, described in fields.items():
        rules, default = described.metadata, described.default
        if rules["group"]:
            group = parser.add_argument_group(rules["group"])
        for alias in rules["aliases"]:
            parser.add_argument(flag(alias), dest=name, metavar=rules["metavar"], help=argparse.SUPPRESS)
        if isinstance(default, bool):
            text = f"{rules['help']} (default: {'on' if default else 'off'})"
            group.add_argument(flag(name), dest=name, action=argparse.BooleanOptionalAction, help=text)
            continue
        shown = f" (default: {default})" if default != "" else ""
        bare = {"nargs": "?", "const": rules["bare"]} if rules["bare"] else {}
        group.add_argument(flag(name), dest=name, metavar=rules["metavar"], help=rules["help"] + shown, **bare)
    return parser


def flag(name: str) -> str:
    """Spell a field as a flag: `batch_size` is `--batch-size`, and `batch_size=8` is `--batch-size=8`."""
    name, equals, value = name.partition("=")
    return f"--{name.replace('_', '-')}{equals}{value}"


def _parse_json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: {_NO_VALUES}") from None


def _parse_yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UnreadableFileError(
            f"{path}: this Python has no PyYAML; fix: run `pip install pyyaml`, or write the file as JSON (.json)"
        ) from None
    try:
        return yaml.load(text, _plain_loader(yaml, path))
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: not YAML: it holds characters that YAML doesn't allow") from None
    except (ValueError, RecursionError):  # a 13th month, thousands of digits, thousands of brackets
        raise ConfigError(f"{path}: {_NO_VALUES}") from None


def _plain_loader(yaml: Any, path: str) -> Any:
    """Return a SafeLoader that refuses aliases: ten lines of nine aliases of the line before make a billion values."""

    class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                line = event.start_mark.line + 1
                found = f"aliases (*{event.anchor}) aren't supported"
                raise ConfigError(f"{path}:{line}: {found}; fix: write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.id == "scalar" and key.value in seen:
                    found = f"the key {_shown(key.value)} is given twice"
                    raise ConfigError(f"{path}:{key.start_mark.line + 1}: {found}; fix: remove one of them")
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    return PlainLoader


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def _number(value: object, wanted: type[int] | type[float]) -> int | float | None:
    """Return `value` as `wanted`, or None: True isn't a number here, and 2.5 isn't rounded to 2."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = wanted(value)
        exact = isinstance(value, str) or number == value
        return number if exact and math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None


def _guess(word: str, names: Mapping[str, str]) -> str:
    """Suggest the name that `word` may be a typo of; names: each known name, and the option that it stands for."""
    close = difflib.get_close_matches(word, names, n=1, cutoff=_TYPO)
    return f", did you mean {names[close[0]]!r}?" if close else ""
