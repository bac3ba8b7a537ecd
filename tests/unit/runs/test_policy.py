"""What follows each failure: a row for each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.runs.bisection import Together, Verdict
from launcher.runs.policy import (
    LONGEST_PAUSE_S,
    MOST_WAITS,
    Ending,
    Outcome,
    Restart,
    Stop,
    count_restarts,
    decide,
    use_verdict,
)
from launcher.runs.run_state import RestartCount

NAN = Ending(Outcome.ERROR, ("gpu2",), "ValueError in train.py:step", has_trained=True)
ODD_NAN = replace(NAN, has_spare=True)
BOTH_NAN = replace(ODD_NAN, suspects=("gpu1", "gpu2"))
KEY = Ending(Outcome.ERROR, ("gpu1",), "KeyError in data.py:read", has_trained=True)
LOST_RANK = Ending(Outcome.CONSEQUENCE, has_trained=True)
HANG = Ending(Outcome.HANG, has_trained=True)
ODD = Ending(Outcome.HANG, ("gpu3",), has_trained=True)
LOST_HOST = Ending(Outcome.HOST, ("gpu4",), has_trained=True)
AWAY = Ending(Outcome.HOST, ("gpu4",), is_refused=True)
REPLACED = Ending(Outcome.HOST, ("gpu9",), is_refused=True, is_replaced=True)


def far(attempt: Ending) -> Ending:
    """The same end after progress."""
    return Ending(attempt.outcome, attempt.suspects, attempt.signature, has_trained=True, has_progress=True)


@pytest.mark.parametrize(
    ("attempts", "why"),
    [
        ([Ending(Outcome.STOPPED)], "stopped"),
        ([Ending(Outcome.INPUT)], "it would fail in the same way again"),
        ([Ending(Outcome.IMPORT, ("gpu1", "gpu2"), is_everywhere=True)], "the module is missing on all hosts"),
        ([Ending(Outcome.IMPORT, ("gpu2",))], "no attempt has imported it yet"),
        ([NAN, NAN], "the same failure twice without progress"),
        ([far(NAN), NAN], "the same failure twice without progress"),
        ([NAN, LOST_RANK, NAN], "the same failure twice without progress"),
        ([NAN, HANG, LOST_HOST, NAN], "the same failure twice without progress"),
        ([ODD_NAN, ODD_NAN, replace(ODD_NAN, suspects=("gpu9",))], "the same failure twice without progress"),
        ([ODD_NAN, replace(ODD_NAN, suspects=("gpu3",))], "the same failure twice without progress"),
        ([BOTH_NAN, BOTH_NAN], "the same failure twice without progress"),
        ([Ending(Outcome.DISK, ("gpu1", "gpu2"), is_everywhere=True)], "the disk that all hosts share is full"),
        (
            [Ending(Outcome.HOST, ("gpu4",), is_start=True)],
            "a host was lost before the run could continue without its terminal",
        ),
        ([NAN, *[AWAY] * (MOST_WAITS + 1)], "no attempt could start for a day"),
        ([NAN, KEY, NAN, KEY], "3 restarts used, 3 without progress, 0 left"),
        ([NAN, far(KEY), NAN, KEY, NAN], "4 restarts used, 3 without progress, 0 left"),
    ],
)
def test_no_other_attempt_follows(attempts: list[Ending], why: str) -> None:
    assert decide(attempts, 3) == Stop(why)


@pytest.mark.parametrize("ending", [NAN, LOST_HOST, LOST_RANK, HANG, Ending(Outcome.NETWORK)])
def test_without_restarts_none_follows(ending: Ending) -> None:
    assert decide([ending], 0) == Stop("--restarts is 0")


@pytest.mark.parametrize(
    ("attempts", "expected", "counted"),
    [
        ([NAN], Restart("a rank failed", 0), (1, 1, 2)),
        ([NAN, KEY], Restart("a rank failed", 5), (2, 2, 1)),
        ([NAN, far(NAN)], Restart("a rank failed", 5), (2, 1, 2)),  # further: the same row of the data may fail again
        ([far(NAN)] * 9, Restart("a rank failed", LONGEST_PAUSE_S), (9, 1, 2)),
        ([NAN, far(LOST_RANK), NAN], Restart("a rank failed", 10), (3, 2, 1)),
        ([LOST_HOST], Restart("gpu4 failed", 0, ("gpu4",), is_blamed=True), (1, 1, 2)),
        (
            [NAN, Ending(Outcome.IMPORT, ("gpu2",))],
            Restart("a module is missing on gpu2", 5, ("gpu2",), is_blamed=True),
            (2, 2, 1),
        ),
        ([Ending(Outcome.DISK, ("gpu2",))], Restart("a disk of gpu2 is full", 0, ("gpu2",), is_blamed=True), (1, 1, 2)),
        ([LOST_RANK], Restart("ranks lost each other", 0), (1, 1, 2)),
        ([LOST_RANK, HANG], Restart("the run hung", 5, is_unexplained=True), (2, 2, 1)),
        ([ODD], Restart("the run hung", 0), (1, 1, 2)),  # the odd rank may be the one that works
        ([ODD, far(ODD)], Restart("the run hung", 5), (2, 1, 2)),  # it got further in between
        ([LOST_HOST, AWAY, AWAY], Restart("gpu4 failed", 10, ("gpu4",), is_blamed=True), (1, 1, 2)),  # a wait is free
        ([LOST_HOST, REPLACED], Restart("gpu9 failed", 0, ("gpu9",), is_blamed=True), (1, 1, 2)),
        ([NAN, Ending(Outcome.ERROR, is_refused=True)], Restart("it could not start", 5), (2, 2, 1)),
        ([ODD_NAN, ODD_NAN], Restart("the same failure of gpu2 twice", 5, ("gpu2",)), (2, 2, 1)),
        ([ODD, ODD], Restart("the run hung", 5, ("gpu3",), is_unexplained=True), (2, 2, 1)),
        ([Ending(Outcome.NETWORK)], Restart("the network of this machine failed", 5), (1, 0, 3)),
    ],
)
def test_another_attempt_follows(attempts: list[Ending], expected: Restart, counted: tuple[int, int, int]) -> None:
    """counted: restarts used, without progress, and left, with the one that follows."""
    assert decide(attempts, 3) == expected
    assert count_restarts(attempts, 3, follows=True) == RestartCount(*counted)


@pytest.mark.parametrize(
    ("verdict", "without", "is_blamed"),
    [
        (Verdict(alone=("gpu1",)), ("gpu1",), True),
        (Verdict(alone=("gpu4",), together=(Together(("gpu1", "gpu2"), ("gpu2",)),)), ("gpu2", "gpu4"), True),
        (Verdict(alone=("gpu1", "gpu2", "gpu3", "gpu4")), ("gpu3",), False),  # what they have in common is to blame
        (Verdict(together=(Together(("gpu1", "gpu2"), ("gpu1", "gpu2")),)), ("gpu1",), False),
        (Verdict(together=(Together(("gpu2", "gpu3"), ("gpu2", "gpu3")),)), ("gpu3",), False),  # noticed there first
        (Verdict(is_repeatable=False), ("gpu3",), False),
        (Verdict(), ("gpu3",), False),
    ],
)
def test_what_follows_a_search(verdict: Verdict, without: tuple[str, ...], is_blamed: bool) -> None:
    decision = decide([ODD, ODD], 3)
    assert isinstance(decision, Restart)
    searched = use_verdict(decision, verdict, ["gpu1", "gpu2", "gpu3", "gpu4"])
    assert (searched.without, searched.is_blamed) == (without, is_blamed)


def test_a_run_that_makes_progress_goes_on_for_ever() -> None:
    attempts = [NAN]
    for _ in range(100):
        decision = decide(attempts, 1)
        assert isinstance(decision, Restart)
        assert 0 <= decision.pause_s <= LONGEST_PAUSE_S
        attempts.append(far(NAN))
