"""How a message of `launch` looks on a terminal: its color and weight. Nothing here does I/O.

Lines stay whole, so that what is copied from them can be pasted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Style(Enum):
    """The kind of a message; the value is the color and weight that a terminal shows it in (SGR of ECMA-48)."""

    TEXT = ""
    STRONG = "1"
    FAILURE = "1;31"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a longer message."""

    text: str
    style: Style = Style.TEXT


def paint(text: str, style: Style) -> str:
    """Return a message as a terminal with colors gets it."""
    return text if style is Style.TEXT else f"\x1b[{style.value}m{text}\x1b[0m"
