"""Format numbers, lists, sizes and times for sentences, and guess what a mistyped word means. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_DIGITS = re.compile("[0-9]+")


def count(number: int, noun: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return `processes` for process, `directories` for directory."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith("s") else "s")


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th` and so on."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def listed(words: Iterable[object]) -> str:
    """Return `a`, `a and b` or `a, b and c`; there must be at least one word."""
    *others, last = map(str, words)
    return f"{', '.join(others)} and {last}" if others else last


def lay_out(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def fold_ranks(ranks: Iterable[int], most: int | None = None) -> str:
    """Return `0-10, 12-15` for the ranks 0 to 15 without 11; after `most` ranges, the other ranks are only counted."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:most])
    more = sum(last - first + 1 for first, last in spans[most:]) if most is not None else 0
    return named + (f" and {more} more" if more else "")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the only known word that `word` is a typo or the beginning of; None rather than a wrong guess.

    A typo leaves three quarters of the letters as they are, or adds up to three at the end. Words that differ only in
    their digits aren't typos: gpu9 doesn't mean gpu1.
    """
    words = [each for each in dict.fromkeys(known) if _DIGITS.sub("", each) != _DIGITS.sub("", word)]
    begun = [each for each in words if len(word) >= 3 and each.startswith(word)]
    longer = [each for each in words if len(each) >= 3 and word.startswith(each) and len(word) <= len(each) + 3]
    found = begun or longer or _find_slips(word, words)
    return found[0] if len(found) == 1 else None


def _find_slips(word: str, known: Sequence[str]) -> list[str]:
    """Return the words that are most like this one, if they are alike enough."""
    from difflib import SequenceMatcher, get_close_matches  # needs 5 ms, and few words are wrong

    found = get_close_matches(word, known, n=2, cutoff=0.74)
    alike = [SequenceMatcher(None, each, word).ratio() for each in found]
    return found[:1] if len(set(alike)) > 1 else found


def size(size_bytes: int) -> str:
    """Return `999 bytes`, `14 kB`, `1.8 MB` or `41 GB`, in steps of 1000."""
    if size_bytes < 1000:
        return count(size_bytes, "byte")
    number, units = size_bytes / 1000, ["kB", "MB", "GB", "TB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    return f"{number:.1f} {units[0]}" if number < 9.95 else f"{number:.0f} {units[0]}"


def duration(seconds: float) -> str:
    """Return a measured time as `0.4 s`, `12 s`, `12 min 31 s` or `3 h 02 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def age(seconds: float) -> str:
    """Return how long ago something was: `12 min 31 s`, or `3 days`."""
    return count(round(seconds / 86400), "day") if seconds >= 2 * 86400 else duration(round(seconds))


def span(seconds: float) -> str:
    """Return a time that a user chose as `90 s`, `10 min` or `1 h`."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
