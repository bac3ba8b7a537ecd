"""Make a command's request, and find where the values came from, and which of two contradictory ones counts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import get_annotations
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.launcher_toml import find_source
from launcher.cli.options.request import HOSTS, KEYS, OPTIONS, Option, Request, name_all
from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.variables import hide_secrets, is_secret
from launcher.transports.registry import TRANSPORTS

_CHOICE_OF_HOSTS = name_all(HOSTS)  # with --transport srun, they are those of the job
_MOST_SHOWN = 10_000  # characters of a value
_TYPED = "the command line"
_NOTHING = "-"  # as a value of a list: drop what comes before it


def settle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the defaults of launcher.toml that a typed option contradicts, and with its lists.

    Raise UsageError for a typed option that has no effect without another one.
    """
    settled = dict(options)
    context = click.get_current_context()
    params = [param for param in context.command.params if isinstance(param, Option)]
    for option in params:
        if option.name in KEYS and option.multiple and option.name in settled:
            settled[option.name] = tuple(value for value, _ in _list_values(option, settled[option.name], context))
        for rival in option.rivals:
            for name, other in ((option.name, rival), (rival, option.name)):
                is_default = context.get_parameter_source(other) is ParameterSource.DEFAULT_MAP
                if is_default and is_on_command_line(name) and settled.get(name) is not False:
                    settled[other] = OPTIONS[other].unset
    transport = TRANSPORTS.get(settled.get("transport", ""))
    if transport is not None and transport.needs_allocation and is_on_command_line("transport"):
        for name in _CHOICE_OF_HOSTS:
            if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
                settled[name] = None
    _refuse_alone(params, settled, context.command.params)
    return settled


def gather(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that it gets the options that its parameters name, and as `request` the Request.

    Only this function and `make_request` take click's mapping of options apart.
    """
    names = get_annotations(command)

    @wraps(command)
    def call(**options: Any) -> int:
        settled = settle(options)
        known = {"request": make_request(settled)} if "request" in names else {}
        return command(**known, **_find_values(names, settled))

    return call


def make_request(settled: Mapping[str, Any]) -> Request:
    """Return the request of these options, from which `settle` has dropped what typed ones contradict."""
    return Request(**_find_values([field.name for field in fields(Request)], settled))


def _find_values(names: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of the option of each name, as far as there are such options."""
    found = {name: name.removesuffix("_s") for name in names}
    return {name: options[option] for name, option in found.items() if option in options}


def _refuse_alone(options: Sequence[Option], settled: Mapping[str, Any], params: Sequence[click.Parameter]) -> None:
    """Raise UsageError for a typed option without the option or argument that it needs, if the command has that."""
    needed = {str(param.name): param for param in params}
    for option in options:
        is_on = is_on_command_line(option.name) and settled[option.name] is not False
        if is_on and option.needs in needed and settled[option.needs] in (None, False, ()):  # False is also 0
            metavar = needed[option.needs].metavar or ""
            name = getattr(needed[option.needs], "flag", metavar.strip("[]."))
            value = f" {metavar}" if name.startswith("-") and metavar and not metavar.startswith("[") else ""
            raise UsageError(f"{option.flag} works only with {name}", f"add {name}{value}, or omit {option.flag}")


def refuse_others(alone: str, *allowed: str) -> None:
    """Raise UsageError for an option that was typed with this one, which ignores all but those that are allowed."""
    flags = {
        param.name: param.flag for param in click.get_current_context().command.params if isinstance(param, Option)
    }
    for name, flag in flags.items():
        if name not in (alone, *allowed) and is_on_command_line(name):
            raise UsageError(f"{flags[alone]} and {flag} are both given", f"omit {flag}")


def _list_values(option: click.Parameter, given: Sequence[Any], context: click.Context) -> list[tuple[Any, str]]:
    """Return the values of an option that is a list, and where each came from: those of launcher.toml come first.

    given: without those of the file if any were typed. A typed `NAME=...` replaces the one of the file; `-` drops
    everything before it.
    """
    name = str(option.name)
    file = find_source(name)
    found = [(value, _TYPED if file is None else file.source) for value in given]
    if file is not None and is_on_command_line(name, context):
        typed = {_name_entry(value) for value in given}
        kept = option.type_cast_value(context, context.lookup_default(name))
        found = [(value, file.source) for value in kept if _name_entry(value) not in typed]
        found += [(value, _TYPED) for value in given]
    drops = [place for place, (value, _) in enumerate(found, 1) if str(value) == _NOTHING]
    return found[drops[-1] if drops else 0 :]


def _name_entry(value: object) -> str:
    return str(value).partition("=")[0]


def is_on_command_line(name: str, context: click.Context | None = None) -> bool:
    """Tell whether an option was typed, not set by launcher.toml."""
    return (context or click.get_current_context()).get_parameter_source(name) is ParameterSource.COMMANDLINE


def is_chosen(name: str) -> bool:
    """Tell whether an option was typed or set by launcher.toml, so that its value isn't the built-in default."""
    chosen = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    return click.get_current_context().get_parameter_source(name) in chosen


def list_behind(names: Collection[str], context: click.Context) -> list[slice]:
    """Return the positions of these options and their values among the words after the script, up to a `--` there."""
    words = context.params.get("words") or ()
    options = [option for option in context.command.params if isinstance(option, click.Option) and option.name in names]
    flags = {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}
    found: list[slice] = []
    for index, word in enumerate(words[1 : words.index("--") if "--" in words else None], 1):
        option = flags.get(word.partition("=")[0])
        if option is not None and (not found or index >= found[-1].stop):  # or it is a value
            found.append(slice(index, index + (1 if option.is_flag or "=" in word else 2)))
    return found


def missing(text: str, fix: str, names: Sequence[str], context: click.Context | None = None) -> UsageError:
    """Return the error for missing options; if one was typed after the script, show the line with it in front."""
    context = context or click.get_current_context()
    behind = list_behind(names, context)[:1]
    if not behind:
        return UsageError(text, fix)
    words = context.params["words"]
    said = f"{text}: {shlex.join(words[behind[0]])} after {shlex.quote(words[0])} goes to {shlex.quote(words[0])}"
    return UsageError(said, f"put options of launch before it: {retype(behind, context)}")


def retype(behind: Sequence[slice], context: click.Context) -> str:
    """Return the command line with these of the words after the script before it, to paste."""
    words, typed = context.params["words"], context.meta[TYPED_WORDS]
    before = [*typed[: len(typed) - len(words)]]
    if context.info_name == "exec" or before[-1:] == ["--"]:
        words, before = ("--", *words), before[:-1] if before[-1:] == ["--"] else before
        behind = [slice(place.start + 1, place.stop + 1) for place in behind]
    moved = [word for place in behind for word in words[place]]
    kept = [word for index, word in enumerate(words) if not any(place.start <= index < place.stop for place in behind)]
    return f"{context.command_path.removesuffix(' run')} {shlex.join(hide_secrets([*before, *moved, *kept]))}"


def name_source(option: str) -> str:
    """Return where a value comes from, for a message: `--hosts`, or `launcher.toml (hosts)`."""
    file = None if is_on_command_line(option) else find_source(option)
    flag = OPTIONS[option].flag
    return flag if file is None else f"{file.source} ({flag[2:]})"


def name_value(value: object) -> object:
    """Return the word for a value that has one: --hang-timeout takes `auto` and `off`, and `sync` in a file `true`."""
    return "auto" if value is None else "off" if value == math.inf else "true" if value == "" else value


def show_sources() -> None:
    """Print where the values of the command's options came from, except defaults of `launch` itself."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        if not isinstance(option, Option) or option.is_action:  # -v shows with which values that is done
            continue
        name = option.name
        file = find_source(name)
        place = _TYPED if is_on_command_line(name) else file.source if file is not None else None
        if place is None:
            continue
        value = name_value(ctx.params[name])
        found = [("..." if option.is_secret or is_secret(name, str(value)) else value, place)]
        if name in KEYS and option.multiple:
            values = _list_values(option, ctx.params[name], ctx)
            found = [(_hide_value(name, str(value)), source) for value, source in values] or [("none", place)]
        for value, source in found:
            line = f"launch: {name.replace('_', '-')} = {value} (from {source})"
            click.echo(one_line(line, _MOST_SHOWN), err=True)  # a stranger may have written the file


def _hide_value(option: str, entry: str) -> str:
    """Return an entry of a list without the value of a variable, which may be a secret."""
    variable, equals, _ = entry.partition("=")
    return f"{variable}=..." if option == "env" and equals else entry
