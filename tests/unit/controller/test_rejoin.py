"""When a host that is missing is tried, and what is said once it is back."""

from __future__ import annotations

import pytest

from launcher.controller.rejoin import FIRST_TRY_S, describe_return, find_pause
from launcher.transports.agents.hub import Return


def test_a_host_that_boots_is_tried_soon_and_one_that_is_off_every_five_minutes() -> None:
    """Five refusals in ten minutes ban this host in many installations; nobody is let in before its users are."""
    pauses = [find_pause(failures) for failures in range(1, 9)]
    assert pauses == [60, 120, 240, 300, 300, 300, 300, 300]
    assert find_pause(10_000) == 300
    tried_at = [FIRST_TRY_S]
    for pause_s in pauses:
        tried_at.append(tried_at[-1] + pause_s)
    assert all(later - earlier > 600 for earlier, later in zip(tried_at, tried_at[4:], strict=False))


@pytest.mark.parametrize(
    ("missing_s", "said"),
    [
        (3.0, None),  # the run has said that it lost the host
        (242.0, "launch: g2 is connected again after 4 min 02 s"),
    ],
)
def test_what_is_said_of_a_host_that_is_back(missing_s: float, said: str | None) -> None:
    assert describe_return(Return("g2", missing_s)) == said
