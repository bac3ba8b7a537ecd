"""When a host that is missing is tried, by which names, and what is said once it is back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from launcher.controller.rejoin import FIRST_TRY_S, describe_return, find_names, find_pause
from launcher.errors import HostFailureKind
from launcher.hosts.host import Host
from launcher.transports.agents.hub import Return

OFF, REFUSED = HostFailureKind.TIMED_OUT, HostFailureKind.LOGIN_REFUSED


def test_a_plain_cut_is_left_to_the_agent() -> None:
    assert find_pause([]) == FIRST_TRY_S


def test_a_host_that_boots_is_tried_often_and_one_that_is_off_every_five_minutes() -> None:
    pauses = [find_pause([OFF] * number) for number in range(1, 9)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    assert find_pause([OFF] * 10_000) == 300


def test_a_login_that_is_refused_is_tried_rarely() -> None:
    """Five of them in ten minutes ban this host in many installations; nobody is let in before its users are."""
    pauses = [find_pause([REFUSED] * number) for number in range(1, 6)]
    assert pauses == [60, 300, 1800, 1800, 1800]
    tried_at = [FIRST_TRY_S]
    for pause_s in pauses:
        tried_at.append(tried_at[-1] + pause_s)
    assert all(late - early > 600 for early, late in pairwise(tried_at[::3]))
    assert find_pause([OFF, OFF, REFUSED]) == 60
    assert find_pause([REFUSED, REFUSED, OFF]) == 40


@pytest.mark.parametrize("kind", [HostFailureKind.HOST_KEY_UNKNOWN, HostFailureKind.CONFIGURATION])
def test_what_needs_a_person_counts_as_refused(kind: HostFailureKind) -> None:
    assert find_pause([kind] * 3) == 1800


def test_the_names_of_a_host() -> None:
    host = Host("g2", user="ann", port=2222, address="10.0.0.2")
    assert [(each.name, each.user, each.port) for each in find_names(host, "192.168.7.2")] == [
        ("g2", "ann", 2222),
        ("10.0.0.2", "ann", 2222),
        ("192.168.7.2", "ann", 2222),
    ]
    assert find_names(Host("10.0.0.2"), "10.0.0.2") == [Host("10.0.0.2")]
    assert find_names(Host("g2"), "") == [Host("g2")]


@pytest.mark.parametrize(
    ("missing_s", "has_rebooted", "own", "said"),
    [
        (3.0, False, None, None),  # the run has said that it lost the host
        (3.0, True, None, "launch: g2 has rebooted and is connected again after 3.0 s"),
        (242.0, False, None, "launch: g2 is connected again after 4 min 02 s"),
        (242.0, True, None, "launch: g2 has rebooted and is connected again after 4 min 02 s"),
        (242.0, True, "g1", "launch: g2 has rebooted; launch started its agent again from g1"),
        (242.0, False, "g1", "launch: g2 was missing for 4 min 02 s; launch started its agent again from g1"),
    ],
)
def test_what_is_said_of_a_host_that_is_back(
    missing_s: float, has_rebooted: bool, own: str | None, said: str | None
) -> None:
    assert describe_return(Return("g2", missing_s, has_rebooted), own) == said
