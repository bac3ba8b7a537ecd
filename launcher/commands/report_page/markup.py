"""HTML in which nothing is left unescaped: a text can only become part of it through `element`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from launcher.escapes import without_controls

_VOID = frozenset({"meta", "link", "br"})  # elements without an end
_MOST_LETTERS = 20_000  # of one text


@dataclass(frozen=True, slots=True)
class Html:
    """Text in which everything foreign is escaped; only this module makes one."""

    text: str


Child = Html | str | Iterable["Child"] | None


def element(tag: str, *children: Child, **attributes: str | None) -> Html:
    """Return an element; a child that is a text is escaped, and a list of children is flattened.

    tag and the names of attributes are those of the source code: `class_` is class, and `stroke_width` stroke-width.
    """
    assert tag.isalnum()
    words = [tag, *(f'{_name(name)}="{_escape(value)}"' for name, value in attributes.items() if value is not None)]
    end = "" if tag in _VOID else f"</{tag}>"
    return Html(f"<{' '.join(words)}>{''.join(map(_render, children))}{end}")


def table(head: Iterable[str], rows: Iterable[Child]) -> Html:
    """Return a table, which scrolls where the screen is narrow; rows: the cells of each."""
    parts = (
        element("thead", element("tr", [element("th", name) for name in head])),
        element("tbody", [element("tr", cells) for cells in rows]),
    )
    return element("div", element("table", *parts), class_="scroll", tabindex="0")


def draw_swatch(kind: str | None, color: str | None = None) -> Html:
    """Return the square before an item of a legend; its color is that of a class of the style sheet, or `color`."""
    return element(
        "svg",
        element("rect", width="10", height="10", rx="2", class_=kind, fill=color),
        class_="swatch",
        viewBox="0 0 10 10",
        aria_hidden="true",
    )


def style(css: str) -> Html:
    """Return a style sheet, in which nothing is escaped: it comes from this package."""
    assert "<" not in css
    return Html(f"<style>{css}</style>")


def page(*children: Html) -> str:
    """Return a whole document."""
    return f"<!doctype html>\n{element('html', *children, lang='en').text}\n"


def _render(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child.text
    return _escape(child) if isinstance(child, str) else "".join(map(_render, child))


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _escape(text: str) -> str:
    cut = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
    return escape(without_controls(cut))
