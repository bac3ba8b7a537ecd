"""Lay out plots and matrices, and write pages and pictures with the templates beside this module.

A template gets numbers and texts; where each goes in a picture is decided here. What a template writes is escaped, and
cleaned of control characters, so no text of a host can become a part of the page. Pure, but for the templates.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from launcher.commands.report_page.plot import Bin, Plot, Point, TimeRange, show_number
from launcher.escapes import without_controls
from launcher.wording import count, duration

WIDTH, HEIGHT = 380, 160  # of a plot, in its own units
_TOP, _RIGHT, _BOTTOM = 8, 12, 20
_LETTER = 5.6  # how wide one is
_DOT = 1.5  # half the width of a point that is alone
_MOST_X_TICKS, _MOST_Y_TICKS = 5, 4
_MOST_LETTERS = 20_000  # of one text
# Between two ticks: seconds, and what is shown of the time.
_STEPS = (
    *((seconds, "%H:%M:%S") for seconds in (1, 2, 5, 10, 15, 30)),
    *((60 * minutes, "%H:%M") for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *((86400 * days, "%b %d") for days in (1, 2, 5, 10, 30, 60, 180, 360)),
)

Tick = tuple[float, str]
_Point = TypeVar("_Point", Point, Bin)


@dataclass(frozen=True, slots=True)
class Shape:
    """A band or a line of a plot; series: 0 for the band and the line in it, 1 and more for those over it."""

    series: int
    points: str
    is_band: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot as its template draws it."""

    title: str
    left: float
    shapes: Sequence[Shape]
    gaps: Sequence[tuple[float, float]]  # left and width
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    width: float = WIDTH
    height: float = HEIGHT
    right: float = WIDTH - _RIGHT
    bottom: float = HEIGHT - _BOTTOM


def draw_plot(plot: Plot, x: TimeRange, gaps: Sequence[tuple[float, float]], zone: tzinfo) -> Chart:
    """Return a plot laid out, its lines interrupted by gaps; x: all of the axis."""
    values = [value for _, *each in plot.bins for value in each]
    values += [value for line in plot.lines for _, value in line.points]
    low, high = _find_range(min(values), max(values))
    y_steps = find_steps(low, high, _MOST_Y_TICKS)
    left = max(len(show_number(value)) for value in y_steps) * _LETTER + 8
    x_scale = (WIDTH - _RIGHT - left) / max(x.end - x.begin, 1.0)
    y_scale = (HEIGHT - _BOTTOM - _TOP) / (high - low)

    def place(at: float) -> float:
        return left + (at - x.begin) * x_scale

    def join(points: Iterable[Point]) -> str:
        return " ".join(f"{place(at):.1f},{_TOP + (high - value) * y_scale:.1f}" for at, value in points)

    def draw_line(series: int, points: Sequence[Point]) -> Shape:
        if len(points) == 1:
            ((at, value),) = points
            points = [(at + side * _DOT / x_scale, value) for side in (-1, 1)]
        return Shape(series, join(points))

    shapes = []
    for part in _split(plot.bins, gaps):
        if any(lowest != highest for _, lowest, _, highest in part):
            around = [*((at, highest) for at, _, _, highest in part), *((at, lowest) for at, lowest, *_ in part[::-1])]
            shapes.append(Shape(0, join(around), is_band=True))
        shapes.append(draw_line(0, [(at, middle) for at, _, middle, _ in part]))
    for series, line in enumerate(plot.lines, 1):
        shapes += [draw_line(series, part) for part in _split(line.points, gaps)]
    begin, end = (show_number(plot.bins[place][2]) for place in (0, -1))
    return Chart(
        f"{plot.title}: {count(len(plot.bins), 'point')} from {begin} to {end}", left, shapes,
        [(place(begin), (end - begin) * x_scale) for begin, end in gaps],
        [(place(at), text) for at, text in find_times(x, zone)],
        [(_TOP + (high - value) * y_scale, show_number(value)) for value in y_steps],
    )  # fmt: skip


def _find_range(low: float, high: float) -> tuple[float, float]:
    """Return what an axis shows: a little more than its values, from 0 if they come near it."""
    if low == high:
        around = abs(low) / 10 or 1.0
        return low - around, high + around
    margin = (high - low) * 0.05
    return 0.0 if 0 <= low < 0.4 * high else low - margin, high + margin


def find_steps(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two others, in equal steps."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if span <= power * factor * most)
    first = math.ceil(low / step)
    return [number * step for number in range(first, first + most + 1) if low <= number * step <= high]


def find_times(times: TimeRange, zone: tzinfo) -> list[Tick]:
    """Return round times of a zone in this range, each with its text."""
    span = times.end - times.begin
    step, form = next(((step, form) for step, form in _STEPS if span / step <= _MOST_X_TICKS), _STEPS[-1])
    offset = datetime.fromtimestamp(times.begin, zone).utcoffset()
    ahead_s = offset.total_seconds() if offset is not None else 0.0
    first = -(-(times.begin + ahead_s) // step) * step - ahead_s
    found = [first + number * step for number in range(_MOST_X_TICKS + 1) if first + number * step <= times.end]
    return [(at, f"{datetime.fromtimestamp(at, zone):{form}}") for at in found]


def _split(points: Iterable[_Point], gaps: Sequence[tuple[float, float]]) -> Collection[Sequence[_Point]]:
    """Return the points before, between and after the gaps: nothing was measured from one part to the next."""
    ends = [end for _, end in gaps]
    parts: dict[int, list[_Point]] = {}
    for point in points:
        parts.setdefault(bisect(ends, point[0]), []).append(point)
    return parts.values()


def render(template: str, **values: Any) -> str:
    """Return what a template makes of these values."""
    environment = Environment(
        loader=PackageLoader("launcher.commands"), autoescape=True, finalize=_clean, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(count=count, duration=duration, number=show_number)
    return environment.get_template(template).render(values)


def _clean(value: object) -> object:
    """Return what is written of a value: text without control characters, and not without end."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return without_controls(value if len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS]}...")
