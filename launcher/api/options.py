"""Turn keyword arguments into options of the command line: `gpus=8` into `--gpus=8`.

`option_types` says for editors and type checkers which there are. Whether there is such an option, and what it may be,
the command itself says. Only what a bool or a list means depends on the declaration of the option.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.cli.options.request import Option

Scalar = str | int | float | os.PathLike[str]
Word = str | os.PathLike[str]
Argv = Word | Sequence[Word]


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options as words of a command line, each as one word, so that no value is read as an option."""
    return [word for name, value in options.items() for word in _as_words(name, value)]


def script_words(argv: Argv) -> list[Word]:
    """Return a script and its arguments as words, after which there are no options of `launch`."""
    return ["--", *list_words(argv)]


def list_words(given: Argv) -> Sequence[Word]:
    """Return one word, or several, as several."""
    return [given] if isinstance(given, (str, os.PathLike)) else given


def _as_words(name: str, value: Any) -> Iterator[str]:
    flag = "--" + name.rstrip("_").replace("_", "-")  # `for_`, which Python has as a keyword
    if value is None:
        return
    if isinstance(value, bool):
        yield from _switch(flag, _find(flag), is_on=value)
    elif isinstance(value, Mapping):  # a variable without a value is forwarded
        yield from (f"{flag}={key}" if each is None else f"{flag}={key}={_text(each)}" for key, each in value.items())
    elif isinstance(value, (str, int, float, os.PathLike)):
        yield f"{flag}={_text(value)}"
    else:
        texts, option = [*map(_text, value)], _find(flag)
        is_repeated = option is None or option.multiple
        yield from (f"{flag}={text}" for text in (texts if is_repeated else [",".join(texts)]))


def _switch(flag: str, option: Option | None, *, is_on: bool) -> Iterator[str]:
    if is_on and option is not None and not option.is_flag and not option.may_stand_alone:
        yield f"{flag}=True"  # which the command refuses as a value, and `--restarts` would take the next word as one
    elif is_on:
        yield flag
    elif option is not None:
        off = f"--no-{flag[2:]}"
        yield from (option.secondary_opts or [off] * (_find(off) is not None))[:1]


def _find(flag: str) -> Option | None:
    from launcher.cli.options.request import OPTIONS  # with click, which is imported in the child anyway

    return next((option for option in OPTIONS.values() if flag in option.opts), None)


def _text(value: Scalar) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
