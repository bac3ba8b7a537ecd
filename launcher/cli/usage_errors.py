"""What click refuses, worded as `launch` words its errors: one line (where, what, value) and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource

from launcher.cli.options.gone import replacement
from launcher.errors import UsageError
from launcher.job.job import TRAINER_MODULE
from launcher.wording import nearest

_VALUE = re.compile(r"(.*) is not (?:in the range|a valid integer)", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def explain(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """Return the same error as one line and a fix; `words` is what was typed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    fix = f"see {context.command_path} --help for the options" if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        return _explain_option(error, words, fix)
    if isinstance(error, click.MissingParameter):
        return UsageError(f"{_name(error)} is missing", fix)
    if isinstance(error, click.BadParameter):
        source = _find_file(error, context)
        if source is not None and error.param is not None:
            text = _describe_value(error)
            key = str(error.param.name).replace("_", "-") + ("" if text.startswith("must ") else ":")
            return UsageError(f"{source}: {key} {text}")
        return UsageError(f"{_name(error)}: {_describe_value(error)}", fix)
    if isinstance(error, click.BadOptionUsage):
        needs = "needs a value" if "requires" in error.message else "takes no value"
        return UsageError(f"{error.option_name} {needs}", fix)
    extra = _EXTRA.match(error.message)
    if extra is None or context is None:
        return UsageError(error.format_message().rstrip("."), fix)
    has_hosts = any(option.name == "hosts" for option in context.command.params)
    hosts_fix = f"name hosts with --hosts a,b: {context.command_path} --hosts LIST"
    return UsageError(f"{context.command_path} takes no argument, got {extra[1]!r}", hosts_fix if has_hosts else fix)


def _find_file(error: click.BadParameter, context: click.Context | None) -> str | None:
    """Return the file that a wrong value comes from; None if it was typed."""
    from launcher.cli.options.launcher_toml import find_source

    name = str(error.param.name) if error.param is not None else ""
    if context is None or context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
        return None
    with context:
        defaults = find_source(name)
    return defaults.source if defaults is not None else None


def _explain_option(error: click.NoSuchOption, words: Sequence[str], fix: str) -> UsageError:
    known = [name for option in error.ctx.command.params for name in option.opts] if error.ctx is not None else []
    names = {name.lstrip("-"): name for name in known if name.startswith("--")}
    starts_ranks = error.ctx is not None and any(param.name == "is_module" for param in error.ctx.command.params)
    name = error.option_name
    if not name.startswith("--"):  # click reads -hosts as the letters h, o, s, t and s
        whole = [word.partition("=")[0] for word in words if re.match(r"-[A-Za-z]{2}", word) and name[1] in word]
        name = whole[0] if whole else name
    if gone := replacement(error.ctx.info_name if error.ctx is not None else None, name):
        return UsageError(f"no option {name!r} any more; instead: {gone}", fix)
    meant = name.lstrip("-").replace("_", "-")
    guess = _find_flag(meant, names) or nearest(meant, names)
    if guess is None and starts_ranks:
        fix += f"; put options of the built-in trainer after -m {TRAINER_MODULE}"
    return UsageError(f"no option {name!r}" + (f"; did you mean {names[guess]!r}?" if guess else ""), fix)


def _find_flag(word: str, names: Mapping[str, str]) -> str | None:
    """Return the one of these options that has this name here or in another launcher."""
    from launcher.cli.options.request import OPTIONS

    word = next((option.flag[2:] for option in OPTIONS.values() if word in option.known_as), word)
    return word if word in names else None


def _name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint or "an option")
    return max(error.param.opts, key=len) if isinstance(error.param, click.Option) else str(error.param.metavar)


def _describe_value(error: click.BadParameter) -> str:
    kind, found = getattr(error.param, "type", None), _VALUE.match(error.message)
    if found is None or not isinstance(kind, click.IntRange):
        return error.message.rstrip(".")
    span = f"from {kind.min} to {kind.max}" if kind.max is not None else f"of at least {kind.min}"
    return f"must be a whole number {span}, got {found[1].strip(chr(39))}"
