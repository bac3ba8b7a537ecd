"""A command: its help, its request, and which of two contradictory values counts.

The help shows examples, then the options in groups, in lines that fit 80 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import get_annotations
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from launcher.cli.command_table import write_examples
from launcher.cli.options.launcher_toml import find_source
from launcher.cli.options.request import HEADINGS, HOSTS, KEYS, OPTIONS, Option, Request, settle_words
from launcher.errors import UsageError
from launcher.transports.registry import TRANSPORTS

TYPED_WORDS = "launcher.typed"  # of a context's meta: a tuple, without the name of the command
_TIMES = "T is a time: 90, 90s, 10m, 2h or 2d."
_UNBROKEN = "\xa0"  # a space at which no line is broken


class Command(click.Command):
    """A command that shows its examples and its options in groups, and keeps the words as they were typed."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]  # in any context: click keeps those of the first one

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = settle_words(args, [each for each in self.params if isinstance(each, click.Option)])
        ctx.meta[TYPED_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        is_of_script = not ctx.allow_interspersed_args and ctx.params.get("words")
        return [] if is_of_script else super().shell_complete(ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace(_UNBROKEN, " ")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_examples(str(self.name), formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in HEADINGS:
            rows = [row for param, row in self._describe_options(ctx) if _find_heading(param) == heading]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if any(param.metavar == "T" for param in self.params):
            formatter.write_paragraph()
            formatter.write_text(_TIMES)

    def _describe_options(self, ctx: click.Context) -> Iterator[tuple[click.Parameter, tuple[str, str]]]:
        """Yield each option with its names and its help; the first word of a default is on the line of its bracket."""
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                yield param, (record[0], record[1].replace("[default: ", f"[default:{_UNBROKEN}"))


def _find_heading(param: click.Parameter) -> str:
    return param.heading if isinstance(param, Option) else HEADINGS[-1]  # that of click's --help


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
