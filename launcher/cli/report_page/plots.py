"""Numbers over time, reduced to what a plot shows; and the numbers that rank 0 prints, such as `loss=2.31`. Pure.

Many programs print `loss 2.31`. After a space, a number counts only if it has a decimal point or an exponent, or is
NaN: `rank 0` and `step 100` are no measurements. A name with another unit is another number, since `1.2k` and `980`
have no scale in common.

`launcher.forms` reads the types of what travels, so annotations aren't postponed here.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from launcher.forms import Most
from launcher.output.log_reader import LogLine

MOST_LINES = 5  # over the band of a plot
MOST_BINS = 200  # of a line; a plot is a few hundred pixels wide
_LEAST_VALUES = 3
_MOST_VALUE = 1e18
_MOST_PLOTS = 12
_MOST_NAMES = 200  # that are followed; a program may print any number of them
_MOST_LETTERS = 2000  # of a line that are read
_NAMED_NUMBER = re.compile(
    r"(?<![\w./-])(?P<name>(?:[A-Za-z]{2,20}[ ])?[A-Za-z_][\w./-]{0,39})"  # `validation loss` isn't `loss`
    r"""(?:['"]?[ \t]{0,3}[=:][ \t]{0,3}|[ ](?=[-+]?(?:[\d,]{0,15}\.\d|\d{1,3}[eE]|nan|inf|NaN|Infinity)))"""
    r"(?P<number>[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d{1,3})?|\.\d+|nan\b|inf\b|NaN\b|Infinity\b))"
    r"(?P<unit>%|[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8})?|/\d{1,12})?"  # or how many there are, as in 7/100
    r"(?![\w%]|[.:/-]\w)"  # what goes on is a time, a date, an address, a version or a word
)

Point = tuple[float, float]  # wall-clock seconds, and the value
Bin = tuple[float, float, float, float]  # wall-clock seconds, and the lowest, mean and highest value around then


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


@dataclass(slots=True)
class Values:
    """The values of one number, reduced to MOST_BINS as they come."""

    times: TimeRange
    count: int = 0
    odd: int = 0  # how many are NaN, infinite or larger than any plot shows
    first_odd_at: float = 0.0
    _bins: dict[int, list[float]] = field(default_factory=dict)  # count, sum of times, lowest, sum and highest value

    def add(self, at: float, value: float) -> None:
        """Take a value; one that is earlier or later than the range, by the clock of a host, doesn't count."""
        if not abs(value) < _MOST_VALUE:
            self.odd, self.first_odd_at = self.odd + 1, self.first_odd_at or at
            return
        begin, end = self.times.begin, self.times.end
        if begin <= at <= end:
            self.count += 1
            number = min(int((at - begin) / max(end - begin, 1e-3) * MOST_BINS), MOST_BINS - 1)
            found = self._bins.setdefault(number, [0, 0.0, math.inf, 0.0, -math.inf])
            found[:] = (
                found[0] + 1, found[1] + at, min(found[2], value), found[3] + value, max(found[4], value)
            )  # fmt: skip

    @property
    def bins(self) -> tuple[Bin, ...]:
        """What a plot shows, in the order of time."""
        found = [each for _, each in sorted(self._bins.items())]
        # Sums are rounded, and a mean is between the lowest value and the highest one.
        return tuple((at / n, low, min(high, max(low, total / n)), high) for n, at, low, total, high in found)

    @property
    def is_worth_a_plot(self) -> bool:
        """Whether it was printed several times, and changes or is odd."""
        lows, highs = ([each[place] for each in self._bins.values()] for place in (2, 4))
        return self.odd > 0 or (self.count >= _LEAST_VALUES and min(lows) < max(highs))


def find_numbers(lines: Iterable[LogLine], utc_offset: str, times: TimeRange) -> list[Plot]:
    """Return the numbers that are worth a plot, the most frequent first; utc_offset: of the stamps of the lines."""
    found: dict[str, Values] = {}
    for line in lines:
        if not line.stamp:
            continue
        at, text = 0.0, line.text[:_MOST_LETTERS].decode("utf-8", "replace")
        for match in _NAMED_NUMBER.finditer(text):
            unit = (match["unit"] or "").rstrip("/0123456789")
            title = f"{match['name']} ({unit})" if unit else match["name"]
            if title not in found and len(found) == _MOST_NAMES:
                continue
            at = at or datetime.fromisoformat(line.stamp + utc_offset).timestamp()
            found.setdefault(title, Values(times)).add(at, float(match["number"].replace(",", "")))
    frequent = sorted(found.items(), key=lambda item: -item[1].count)
    worth = [(title, values) for title, values in frequent if values.is_worth_a_plot][:_MOST_PLOTS]
    return [Plot(title, values.bins, note=_describe(values, utc_offset)) for title, values in worth]


def _describe(values: Values, utc_offset: str) -> str:
    """Return a note about the values that can't be drawn, or nothing."""
    if not values.odd:
        return ""
    zone = datetime.fromisoformat(f"2000-01-01T00:00:00{utc_offset}").tzinfo
    first = datetime.fromtimestamp(values.first_odd_at, zone)
    return f"NaN or infinite {values.odd} times, first at {first:%Y-%m-%d %H:%M:%S}"
