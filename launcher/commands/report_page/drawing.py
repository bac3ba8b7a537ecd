"""Draw a plot as SVG that is part of the page: its text is text, black is the color of the text around it.

matplotlib is an optional dependency, imported when something is drawn. Of what it writes only shapes and text are kept:
no ids, which the plots of one page would share, no style sheet, which would hold for the whole page, and no metadata.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from io import StringIO
from typing import Any, TypeVar
from xml.etree import ElementTree

from launcher.commands.plots import own_style
from launcher.commands.report_page.markup import Html, element
from launcher.commands.report_page.plot import Bin, Plot, Point, TimeRange, show_number

COLORS = ("#3987e5", "#e0503c", "#c98500", "#199e70", "#b05ccf", "#7a6a5f")  # the band, then the lines over it
_INCHES = (5.0, 2.1)
_MOST_TICKS = 6
# Between two ticks: seconds, and what is shown of the time.
_STEPS = (
    *((seconds, "%H:%M:%S") for seconds in (1, 2, 5, 10, 15, 30)),
    *((60 * minutes, "%H:%M") for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *((86400 * days, "%b %d") for days in (1, 2, 5, 10, 30, 60, 180, 360)),
)
_DROPPED = ("metadata", "defs", "style")
_KEPT = frozenset({"d", "x", "y", "viewBox", "fill", "fill-opacity", "opacity",
                   "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "text-anchor"})  # fmt: skip
_FRACTION = re.compile(r"(\d+)\.(\d)\d*")
_BLANKS = re.compile(r"\s+")

_Point = TypeVar("_Point", Point, Bin)


def draw(plot: Plot, times: TimeRange, marks: Sequence[float], zone: tzinfo | None) -> Html:
    """Return a plot as SVG; marks: times at which a thin line is drawn; zone: of the times below it, None: of steps."""
    settings: Any = {"svg.fonttype": "none", "text.parse_math": False, "axes.linewidth": 0.6, "font.size": 9}
    with own_style(settings):
        from matplotlib.figure import Figure

        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        _draw_lines(axes, plot, marks, (times.end - times.begin) / 300)
        axes.set_xlim(times.begin, max(times.end, times.begin + 1))
        if zone is None:
            axes.locator_params(axis="x", nbins=_MOST_TICKS)
            axes.xaxis.set_major_formatter(lambda value, position: show_number(value))
        else:
            ticks = find_ticks(times, zone)
            axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(lambda value, position: show_number(value))
        axes.tick_params(left=False, bottom=False)
        axes.grid(axis="y", color="black", alpha=0.15, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        file = StringIO()
        figure.savefig(file, format="svg", transparent=True)
    root = ElementTree.fromstring(file.getvalue())
    begin, end = show_number(plot.bins[0][2]), show_number(plot.bins[-1][2])
    title = f"{plot.title}: {len(plot.bins)} points from {begin} to {end}"
    return element("svg", element("title", title), [*_copy_children(root)], role="img", viewBox=root.get("viewBox"))


def find_ticks(times: TimeRange, zone: tzinfo) -> list[tuple[float, str]]:
    """Return round times of a zone in this range, each with its text."""
    span = times.end - times.begin
    step, form = next(((step, form) for step, form in _STEPS if span / step <= _MOST_TICKS), _STEPS[-1])
    offset = datetime.fromtimestamp(times.begin, zone).utcoffset()
    ahead_s = offset.total_seconds() if offset is not None else 0.0
    first = -(-(times.begin + ahead_s) // step) * step - ahead_s
    found = [first + number * step for number in range(_MOST_TICKS + 1) if first + number * step <= times.end]
    return [(at, f"{datetime.fromtimestamp(at, zone):{form}}") for at in found]


def _draw_lines(axes: Any, plot: Plot, marks: Sequence[float], dot: float) -> None:
    """Draw band and lines, with a gap at each mark; dot: half the width of a point that is alone."""
    for part in _split(plot.bins, marks):
        at, low, middle, high = zip(*part, strict=True)
        if low != high:
            around = [*at, *reversed(at)], [*low, *reversed(high)]
            axes.fill(*around, color=COLORS[0], alpha=0.25, linewidth=0, clip_on=False)  # fill_between refers to an id
        _draw_line(axes, at, middle, COLORS[0], dot)
    for line, color in zip(plot.lines, COLORS[1:], strict=False):
        for piece in _split(line.points, marks):
            times, values = zip(*piece, strict=True)
            _draw_line(axes, times, values, color, dot)
    for mark in marks:
        axes.axvline(mark, color="black", alpha=0.4, linewidth=0.8, dashes=(3, 3), clip_on=False)


def _split(points: Iterable[_Point], marks: Sequence[float]) -> Collection[Sequence[_Point]]:
    """Return the points before, between and after the marks: nothing was measured from one part to the next."""
    parts: dict[int, list[_Point]] = {}
    for point in points:
        parts.setdefault(bisect(marks, point[0]), []).append(point)
    return parts.values()


def _draw_line(axes: Any, at: Sequence[float], values: Sequence[float], color: str, dot: float) -> None:
    if len(at) == 1:
        axes.plot((at[0] - dot, at[0] + dot), [*values] * 2, color=color, linewidth=4, clip_on=False)
    else:
        axes.plot(at, values, color=color, linewidth=1.5, clip_on=False)


def _copy_children(node: ElementTree.Element) -> Iterator[Html]:
    """Yield the shapes and texts below a node of matplotlib's SVG; a group that says nothing is left out."""
    for child in node:
        tag = child.tag.rpartition("}")[2]
        if tag in _DROPPED:
            continue
        attributes = _read_attributes(child)
        if tag == "g" and not attributes:
            yield from _copy_children(child)
            continue
        yield element(tag, child.text if tag == "text" else None, [*_copy_children(child)], **attributes)


def _read_attributes(node: ElementTree.Element) -> dict[str, str]:
    """Return the attributes of a shape; its style becomes some of these, since the page allows no style but its own."""
    words = (word.partition(":") for word in node.get("style", "").split(";"))
    found = {**node.attrib, **{name.strip(): value.strip() for name, _, value in words}}
    kept = {name: _shorten(value) for name, value in found.items() if name in _KEPT}
    return {name: "currentColor" if value == "#000000" else value for name, value in kept.items()}


def _shorten(text: str) -> str:
    """Return numbers with one decimal, which is a tenth of a pixel, and no newlines."""
    return _BLANKS.sub(" ", _FRACTION.sub(r"\1.\2", text)).strip()
