"""What a run does now, in words and as its file has it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from launcher.forms import reader_of
from launcher.runs.run_state import Activity, Doing, RestartCount, RunState

COUNT = RestartCount(3, 1, 2)
NOW = 1.8e9
WAITING = RunState(Activity.WAITING, NOW, COUNT, ("g2",))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RunState(Activity.RUNNING, NOW, COUNT), "running"),
        (RunState(Activity.STOPPING, NOW, COUNT), "stopping"),
        (RunState(Activity.STARTING, NOW, RestartCount()), "starting"),
        (RunState(Activity.STARTING, NOW, COUNT), "starting restart 3"),
        (RunState(Activity.SEARCHING, NOW, COUNT), "searching for the host to blame"),
        (RunState(Activity.PAUSED, NOW, COUNT, until=NOW + 270), "paused 20 s before restart 3"),
        (RunState(Activity.PAUSED, NOW, COUNT, until=NOW), "paused 0.0 s before restart 3"),
        (RunState(Activity.WAITING, NOW, COUNT, ("g1",)), "waiting for g1 (4 min 10 s)"),
        (RunState(Activity.WAITING, NOW + 200, COUNT, ("g1",)), "waiting for g1 (50 s)"),
        (RunState(Activity.WAITING, NOW - 10_800, COUNT, ("g1", "g2", "g3")), "waiting for g[1-3] (3 h 04 min)"),
        (
            RunState(Activity.WAITING, NOW, COUNT, tuple(f"n{2 * number}" for number in range(99))),
            "waiting for 99 hosts (4 min 10 s)",
        ),
        (RunState(Activity.WAITING, NOW, COUNT, ("r1-n1", "r1-n2")), "waiting for r1-n[1-2] (4 min 10 s)"),
        (
            RunState(Activity.WAITING, NOW, COUNT, tuple(f"r{n * n}-n{n}-{n % 7}" for n in range(10_000))),
            "waiting for 10000 hosts (4 min 10 s)",
        ),
    ],
)
def test_the_words(state: RunState, words: str) -> None:
    assert reader_of(RunState)(json.loads(json.dumps(asdict(state)))) == state
    doing = state.as_doing(NOW + 250)
    assert str(doing) == words
    assert reader_of(Doing)(json.loads(json.dumps(asdict(doing)))) == doing


def test_a_clock_that_was_set_back() -> None:
    assert str(WAITING.as_doing(NOW - 250)) == "waiting for g2 (0.0 s)"
