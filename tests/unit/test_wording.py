"""Numbers, lists, sizes and times in words."""

from __future__ import annotations

import pytest

from launcher.wording import count, duration, fold_ranks, listed, nearest, size, span


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((duration(seconds), words) for seconds, words in (
            (0.44, "0.4 s"), (9.94, "9.9 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (10925, "3 h 02 min"),
        )),
        *((size(size_bytes), words) for size_bytes, words in (
            (0, "0 bytes"), (999, "999 bytes"), (9_950, "10 kB"), (999_500, "1.0 MB"), (5 * 10**15, "5000 TB"),
        )),
        (count(1, "node"), "1 node"), (count(0, "process"), "0 processes"), (count(2, "directory"), "2 directories"),
        (count(2, "key"), "2 keys"),
        # A time as it was chosen.
        *((span(seconds), words) for seconds, words in (
            (0.5, "0.5 s"), (90, "90 s"), (60, "1 min"), (3600, "1 h"), (5400, "90 min"),
        )),
        (fold_ranks([]), ""), (fold_ranks([3]), "3"), (fold_ranks([2, 0, 1, 7, 9, 8]), "0-2, 7-9"),
        (fold_ranks([1, 3]), "1, 3"),
        (fold_ranks([0, 2, 3, 9, 10], most=2), "0, 2-3 and 2 more"), (fold_ranks([0, 2, 3], most=2), "0, 2-3"),
        (listed(["a"]), "a"), (listed([1, 2]), "1 and 2"), (listed(iter("abc")), "a, b and c"),
    ],
)  # fmt: skip
def test_words(words, expected):
    assert words == expected


COMMANDS = ("run", "singlenode", "check", "clean", "exec", "hosts", "demo")


@pytest.mark.parametrize(
    ("word", "choices", "guess"),
    [
        *((word, COMMANDS, guess) for word, guess in (
            ("hots", "hosts"), ("host", "hosts"), ("exce", "exec"), ("chekc", "check"), ("singelnode", "singlenode"),
            ("sing", "singlenode"), ("cle", "clean"), ("cleanup", "clean"), ("rn", "run"), ("c", None),
            ("attach", None), ("logs", None), ("ps", None), ("stop", None), ("top", None), ("", None),
            ("x" * 5000, None),
        )),
        ("detach", ("share", "stacks", "batch"), None), ("gpu9", ("gpu1", "gpu2"), None), ("gpu9", ("gpu1",), None),
        ("abcdef", ("abcdeg", "abcdeh"), None), ("login", ("gpu1", "logni"), "logni"),
    ],
)  # fmt: skip
def test_a_guess_is_a_slip_or_a_beginning_and_none_is_better_than_a_wrong_one(word, choices, guess):
    assert nearest(word, choices) == guess
