"""Find the numbers that rank 0 prints again and again, such as `loss=2.31`, `'lr': 3e-4` and `tokens/s: 12,034`.

Many programs print `loss 2.31`. After a space, a number counts only if it has a decimal point or an exponent, or is
NaN: `rank 0` and `step 100` are no measurements. A name with another unit is another number, since `1.2k` and `980`
have no scale in common.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from datetime import datetime

from launcher.commands.report_page.plot import Plot, TimeRange, find_extremes
from launcher.output.log_reader import LogLine

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


class _Values:
    """The values of one name, by time; 16 bytes each."""

    __slots__ = ("first_odd_at", "odd", "times", "values")

    def __init__(self) -> None:
        self.times = array("d")
        self.values = array("d")
        self.odd = 0  # how many are NaN, infinite or larger than any plot shows
        self.first_odd_at = 0.0

    def add(self, at: float, value: float) -> None:
        if abs(value) < _MOST_VALUE:
            self.times.append(at)
            self.values.append(value)
            return
        self.odd += 1
        self.first_odd_at = self.first_odd_at or at

    @property
    def is_worth_a_plot(self) -> bool:
        return len(self.values) >= _LEAST_VALUES and (min(self.values) < max(self.values) or self.odd > 0)


def find_numbers(lines: Iterable[LogLine], utc_offset: str, times: TimeRange) -> list[Plot]:
    """Return the numbers that are worth a plot, the most frequent first; utc_offset: of the stamps of the lines."""
    found: dict[str, _Values] = {}
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
            found.setdefault(title, _Values()).add(at, float(match["number"].replace(",", "")))
    frequent = sorted(found.items(), key=lambda item: -len(item[1].values))
    worth = [(title, values) for title, values in frequent if values.is_worth_a_plot][:_MOST_PLOTS]
    return [
        Plot(
            title,
            times.reduce(zip(each.times, each.values, strict=True), find_extremes),
            note=_describe(each, utc_offset),
        )
        for title, each in worth
    ]


def _describe(values: _Values, utc_offset: str) -> str:
    """Return a note about the values that can't be drawn, or nothing."""
    if not values.odd:
        return ""
    zone = datetime.fromisoformat(f"2000-01-01T00:00:00{utc_offset}").tzinfo
    first = datetime.fromtimestamp(values.first_odd_at, zone)
    return f"NaN or infinite {values.odd} times, first at {first:%Y-%m-%d %H:%M:%S}"
