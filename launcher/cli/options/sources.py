"""Make a command's request, and find which of two contradictory values counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import get_annotations
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.options.launcher_toml import find_source
from launcher.cli.options.request import HOSTS, KEYS, OPTIONS, Option, Request
from launcher.errors import UsageError
from launcher.transports.registry import TRANSPORTS


def settle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the defaults of launcher.toml that a typed option contradicts, and with its lists.

    Raise UsageError for a typed option that has no effect without another one, or behind the script.
    """
    from launcher.cli.mistakes import refuse_trailing

    settled = dict(options)
    context = click.get_current_context()
    params = [param for param in context.command.params if isinstance(param, Option)]
    for option in params:
        if option.name in KEYS and option.multiple and option.name in settled:
            settled[option.name] = _list_values(option, settled[option.name], context)
        for rival in option.rivals:
            for name, other in ((option.name, rival), (rival, option.name)):
                is_default = context.get_parameter_source(other) is ParameterSource.DEFAULT_MAP
                if is_default and is_on_command_line(name) and settled.get(name) is not False:
                    settled[other] = OPTIONS[other].unset
    transport = TRANSPORTS.get(settled.get("transport", ""))
    if transport is not None and transport.needs_allocation and is_on_command_line("transport"):
        for name in (option.name for option in HOSTS):  # they are those of the job
            if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
                settled[name] = None
    _refuse_alone(params, settled, context.command.params)
    if not context.allow_interspersed_args:
        refuse_trailing(context)
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


def _list_values(option: click.Parameter, given: Sequence[Any], context: click.Context) -> tuple[Any, ...]:
    """Return the values of an option that is a list: those of launcher.toml, then those that were typed.

    given: without those of the file if any were typed. A typed `NAME=...` replaces the one of the file.
    """
    name = str(option.name)
    if find_source(name) is None or not is_on_command_line(name, context):
        return tuple(given)
    typed = {_name_entry(value) for value in given}
    kept = option.type_cast_value(context, context.lookup_default(name))
    return (*(value for value in kept if _name_entry(value) not in typed), *given)


def _name_entry(value: object) -> str:
    return str(value).partition("=")[0]


def is_on_command_line(name: str, context: click.Context | None = None) -> bool:
    """Tell whether an option was typed, not set by launcher.toml."""
    return (context or click.get_current_context()).get_parameter_source(name) is ParameterSource.COMMANDLINE


def is_chosen(name: str) -> bool:
    """Tell whether an option was typed or set by launcher.toml, so that its value isn't the built-in default."""
    chosen = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    return click.get_current_context().get_parameter_source(name) in chosen


def name_source(option: str) -> str:
    """Return where a value comes from, for a message: `--hosts`, or `launcher.toml (hosts)`."""
    file = None if is_on_command_line(option) else find_source(option)
    flag = OPTIONS[option].flag
    return flag if file is None else f"{file.source} ({flag[2:]})"
