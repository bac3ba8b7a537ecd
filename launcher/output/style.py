"""How a message of `launch` looks on a terminal: its color and weight, and where its lines break.

A terminal breaks a line in the middle of a word or a path, so sentences are broken between words here. Nothing here
does I/O.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import Enum

_LEAST_COLUMNS = 40  # a narrower terminal breaks the lines itself


class Style(Enum):
    """The kind of a message; the value is the color and weight that a terminal shows it in (SGR of ECMA-48)."""

    AS_IS = ""  # a line that may be copied, such as a command, is never broken
    TEXT = "0"
    STRONG = "1"
    FAILURE = "1;31"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a longer message."""

    text: str
    style: Style = Style.TEXT


def break_line(text: str, columns: int) -> list[str]:
    """Break a line between words, so that it fits; what follows is indented. A word that is too long stays whole."""
    if len(text) <= columns or columns < _LEAST_COLUMNS:
        return [text]
    margin = text[: len(text) - len(text.lstrip())]
    wrapper = textwrap.TextWrapper(
        columns, initial_indent=margin, subsequent_indent=f"{margin}  ",
        expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapper.wrap(text[len(margin) :]) or [text]


def render(text: str, style: Style, columns: int, *, with_color: bool) -> str:
    """Return a message as a terminal of so many columns gets it; columns: 0 if the terminal has none set."""
    if style is Style.AS_IS:
        return text
    lines = break_line(text, columns)
    if with_color and style is not Style.TEXT:
        lines = [f"\x1b[{style.value}m{line}\x1b[0m" for line in lines]
    return "\n".join(lines)
