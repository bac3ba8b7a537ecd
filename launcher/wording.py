"""Numbers, lists and times as sentences have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """`processes` for process."""
    return noun + ("es" if noun.endswith("s") else "s")


def listed(words: Iterable[object]) -> str:
    """`a`, `a and b` or `a, b and c`; there must be one."""
    *others, last = map(str, words)
    return f"{', '.join(others)} and {last}" if others else last


def fold_ranks(ranks: Iterable[int], most: int | None = None) -> str:
    """`0-10, 12-15` for the ranks 0 to 15 without 11; most: ranges that are named, ranks beyond them are counted."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:most])
    more = sum(last - first + 1 for first, last in spans[most:]) if most is not None else 0
    return named + (f" and {more} more" if more else "")


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `12 min 31 s` or `3 h 02 min`: a time that was measured."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def span(seconds: float) -> str:
    """`90 s`, `10 min` or `1 h`: a time as somebody chose it."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
