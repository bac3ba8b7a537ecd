"""What an agent may do, by what has happened to it."""

from __future__ import annotations

import pytest

from launcher.node.agents.agent import Lifecycle

CONNECT_TIMEOUT_S, REDIAL_S = 10.0, 600.0


@pytest.fixture
def agent() -> Lifecycle:
    """Return an agent that dials since 100 s."""
    return Lifecycle(CONNECT_TIMEOUT_S, REDIAL_S, 100.0)


@pytest.fixture
def started(agent: Lifecycle) -> Lifecycle:
    """Return an agent that is connected, and has heard GO."""
    agent.plan_dial(100.0)
    agent.stop_dialing()
    agent.connect()
    agent.start()
    return agent


def test_it_dials_at_once_and_then_less_and_less_often(agent: Lifecycle) -> None:
    pauses, now = [], 100.0
    assert agent.dial_at == now
    for _ in range(7):
        agent.plan_dial(now)
        assert agent.dial_at is not None
        pauses.append(agent.dial_at - now)
        now = agent.dial_at
    assert pauses == [1, 2, 3, 4, 5, 5, 5]


def test_it_ends_when_it_is_not_accepted_in_time(agent: Lifecycle) -> None:
    agent.plan_dial(100.0)
    agent.stop_dialing()  # it was found, but says nothing
    assert agent.wake_at() == 110.0
    agent.check_time(109.9)
    assert agent.exit_code is None
    agent.check_time(110.0)
    assert agent.exit_code == 1
    assert agent.wake_at() is None


def test_once_accepted_it_waits_for_nothing(agent: Lifecycle) -> None:
    agent.plan_dial(100.0)
    agent.stop_dialing()
    agent.connect()
    agent.check_time(1e9)
    assert (agent.exit_code, agent.wake_at()) == (None, None)


def test_before_go_a_lost_connection_ends_it(agent: Lifecycle) -> None:
    agent.plan_dial(100.0)
    agent.connect()
    agent.disconnect(101.0)
    assert agent.exit_code == 1


def test_after_go_it_dials_again_for_a_while(started: Lifecycle) -> None:
    started.disconnect(1000.0)
    assert started.exit_code is None
    assert started.dial_at == 1001.0
    started.check_time(1599.9)
    assert started.exit_code is None
    started.check_time(1600.0)
    assert started.exit_code == 1
    assert started.dial_at is None


def test_each_loss_has_its_own_while(started: Lifecycle) -> None:
    started.disconnect(1000.0)
    started.plan_dial(1001.0)
    started.stop_dialing()
    started.connect()
    started.check_time(5000.0)
    started.disconnect(5000.0)
    assert (started.exit_code, started.dial_at) == (None, 5001.0)


def test_one_that_is_started_after_go_may_start_processes() -> None:
    agent = Lifecycle(CONNECT_TIMEOUT_S, REDIAL_S, 100.0, is_after_go=True)
    assert agent.dial_at == 100.0
    agent.check_time(100.0 + CONNECT_TIMEOUT_S - 0.1)
    assert (agent.exit_code, agent.refuse()) == (None, None)
    agent.check_time(100.0 + CONNECT_TIMEOUT_S)
    assert agent.exit_code == 1


def test_it_may_be_told_never_to_dial_again() -> None:
    agent = Lifecycle(CONNECT_TIMEOUT_S, 0, 100.0)
    agent.connect()
    agent.start()
    agent.disconnect(1000.0)
    assert agent.exit_code == 1


def test_the_first_end_counts_and_nothing_is_dialed_after_it(started: Lifecycle) -> None:
    started.end(0)
    started.end(1)
    started.disconnect(1000.0)
    started.plan_dial(1000.0)
    assert (started.exit_code, started.dial_at, started.wake_at()) == (0, None, None)


def test_what_is_refused(agent: Lifecycle) -> None:
    assert agent.refuse() == "the controller has not said GO"
    agent.start()
    assert agent.refuse() is None
    agent.end(0)
    assert agent.refuse() == "it is ending"
