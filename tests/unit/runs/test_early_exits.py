"""Ranks that end well while others go on are named once."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace as Fake

import pytest

from launcher.node import messages
from launcher.runs import early_exits
from launcher.runs.early_exits import EarlyExitNotice
from launcher.session.connection import Event
from launcher.session.node_state import NodeState

PLAN = Fake(nodes=[Fake(host=Fake(name=f"n{5 + node}"), first_rank=2 * node, nproc=2) for node in (0, 1)])


def hear(monkeypatch, *exits):
    """Return what is said of these exits, each (rank, exit code), once the notice is due."""
    monkeypatch.setattr(early_exits, "NOTICE_S", 0.0)
    states = [NodeState(node.host.name, started={0, 1}) for node in PLAN.nodes]
    listeners, said = [], []

    @contextmanager
    def subscribe(kind, listener):
        assert kind == messages.EXIT
        listeners.append(listener)
        yield
        listeners.remove(listener)

    async def run():
        with EarlyExitNotice(Fake(states=states, subscribe=subscribe, say=said.append), PLAN).allowed():
            for rank, code in exits:
                event = Event(rank // 2, messages.EXIT, {"local_rank": rank % 2, "code": code, "age_s": 0.0}, 1.0)
                states[event.index].take(event)
                listeners[0](event)
            for _ in range(3):
                await asyncio.sleep(0)
        assert listeners == []

    asyncio.run(run())
    return said


@pytest.mark.parametrize(
    ("exits", "said"),
    [
        ([], []),
        ([(1, 1)], []),
        ([(1, 0)], ["launch: n5 rank 1 finished (exit code 0); 3 others are still running"]),
        (
            [(1, 0), (2, 0), (3, 0)],
            ["launch: 3 ranks, 1 on n5, 2 on n6, finished (exit code 0); 1 other is still running"],
        ),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], []),
    ],
)
def test_who_has_ended_is_said_while_others_run(monkeypatch, exits, said):
    assert hear(monkeypatch, *exits) == said
