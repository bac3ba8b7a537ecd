"""Numbers, lists, sizes and times in words."""

from __future__ import annotations

import pytest

from launcher.wording import count, duration, fold_ranks, listed, nearest, size, span


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.44, "0.4 s"), (9.94, "9.9 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (10925, "3 h 02 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (9_950, "10 kB"), (999_500, "1.0 MB"), (5 * 10**15, "5000 TB")],
)
def test_sizes(size_bytes, words):
    assert size(size_bytes) == words


@pytest.mark.parametrize(
    ("number", "thing", "words"),
    [(1, "node", "1 node"), (0, "process", "0 processes"), (2, "directory", "2 directories"), (2, "key", "2 keys")],
)
def test_counts(number, thing, words):
    assert count(number, thing) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.5, "0.5 s"), (90, "90 s"), (60, "1 min"), (3600, "1 h"), (5400, "90 min")]
)
def test_a_time_as_it_was_chosen(seconds, words):
    assert span(seconds) == words


@pytest.mark.parametrize(("ranks", "text"), [([], ""), ([3], "3"), ([2, 0, 1, 7, 9, 8], "0-2, 7-9"), ([1, 3], "1, 3")])
def test_ranks_are_folded(ranks, text):
    assert fold_ranks(ranks) == text


def test_ranges_beyond_the_most_are_counted():
    assert fold_ranks([0, 2, 3, 9, 10], most=2) == "0, 2-3 and 2 more"
    assert fold_ranks([0, 2, 3], most=2) == "0, 2-3"


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), ([1, 2], "1 and 2"), (iter("abc"), "a, b and c")])
def test_lists(words, text):
    assert listed(words) == text


COMMANDS = ("run", "singlenode", "check", "clean", "exec", "hosts", "demo")


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("hots", "hosts"), ("host", "hosts"), ("exce", "exec"), ("chekc", "check"), ("singelnode", "singlenode"),
        ("sing", "singlenode"), ("cle", "clean"), ("cleanup", "clean"), ("rn", "run"), ("c", None),
        ("attach", None), ("logs", None), ("ps", None), ("stop", None), ("top", None), ("", None), ("x" * 5000, None),
    ],
)  # fmt: skip
def test_a_guess_is_a_slip_or_a_beginning(word, guess):
    assert nearest(word, COMMANDS) == guess


def test_no_guess_is_better_than_a_wrong_one():
    assert nearest("detach", ("share", "stacks", "batch")) is None
    assert nearest("gpu9", ("gpu1", "gpu2")) is None
    assert nearest("gpu9", ("gpu1",)) is None
    assert nearest("abcdef", ("abcdeg", "abcdeh")) is None
    assert nearest("login", ("gpu1", "logni")) == "logni"
