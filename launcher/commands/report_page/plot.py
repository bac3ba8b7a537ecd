"""Numbers over time, reduced to what a plot shows. Pure.

`launcher.forms` reads the types of what travels, so annotations aren't postponed here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from launcher.forms import Most

MOST_LINES = 5  # over the band of a plot
MOST_BINS = 200  # of a line; a plot is a few hundred pixels wide

Point = tuple[float, float]  # wall-clock seconds, and the value
Bin = tuple[float, float, float, float]  # wall-clock seconds, and the lowest, middle and highest value around then
_Summary = Callable[[Sequence[float]], tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One GPU's values, beside those of all."""

    name: str
    points: Annotated[tuple[Point, ...], Most(MOST_BINS)]


@dataclass(frozen=True, slots=True)
class Plot:
    """One number over time, as a band with a line in it; `lines` are drawn over that."""

    title: str
    bins: Annotated[tuple[Bin, ...], Most(MOST_BINS)]
    lines: Annotated[tuple[Line, ...], Most(MOST_LINES)] = ()
    note: str = ""  # what the band is, or what can't be drawn


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From the first to the last moment that plots show, in wall-clock seconds; all plots of a page share it."""

    begin: float
    end: float

    def reduce(self, points: Iterable[Point], summarize: _Summary) -> tuple[Bin, ...]:
        """Return the points in at most MOST_BINS bins; summarize: the lowest, middle and highest of some values."""
        width = max(self.end - self.begin, 1e-3) / MOST_BINS
        bins: dict[int, tuple[list[float], list[float]]] = {}
        for at, value in points:
            if not self.begin <= at <= self.end:  # by the clock of a host
                continue
            times, values = bins.setdefault(min(int((at - self.begin) / width), MOST_BINS - 1), ([], []))
            times.append(at)
            values.append(value)
        return tuple((fmean(times), *summarize(values)) for _, (times, values) in sorted(bins.items()))


def show_number(value: float) -> str:
    """Return a value as `12,034`, `0.0821` or `3e-05`."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def find_extremes(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lowest value, the mean and the highest."""
    return min(values), fmean(values), max(values)


def find_most(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the values between which 80 % of all are, with the median between them."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(0.1 * last)], ordered[round(0.5 * last)], ordered[round(0.9 * last)]
