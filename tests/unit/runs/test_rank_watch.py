"""What ranks do besides failing: all run for a while, and no host is silent, or some end well while others go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace as Fake

import pytest
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.job.job import Program, ProgramKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.runs import rank_watch
from launcher.runs.rank_watch import say_early_exits
from launcher.session.connection import Event
from launcher.session.node_state import NodeState

PLAN = LaunchPlan(
    Program(ProgramKind.SCRIPT, "train.py"),
    tuple(NodePlan(Host(f"gpu{node + 1}"), node, node, 1, "/", {}) for node in (0, 1)),
    2, 2, "10.0.0.1", 1,
)  # fmt: skip


@dataclass
class TalkingSession:
    """Two hosts, of which one is silent for as long as a test says."""

    silent: list[bool]  # what each look finds
    states: list[NodeState] = field(default_factory=lambda: [NodeState("gpu1"), NodeState("gpu2")])

    @contextlib.contextmanager
    def subscribe(self, kind: str, listener: Callable[[Event], None]) -> Iterator[None]:
        self.tell = listener
        yield

    def is_silent(self) -> bool:
        return self.silent.pop(0)


@pytest.mark.parametrize("silent", [[False], [True, True, False]])
def test_all_ranks_have_started_and_no_host_is_silent(silent: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_watch, "ALL_RUN_S", 0.0)
    monkeypatch.setattr(rank_watch, "RECHECK_S", 0.0)
    session = TalkingSession(silent)

    async def run() -> None:
        is_told = asyncio.Event()
        with rank_watch.call_when_all_run(session, PLAN, is_told.set):  # type: ignore[arg-type]
            for index, state in enumerate(session.states):
                state.started.add(0)
                session.tell(Event(index, messages.STARTED, {"local_rank": 0}, 1.0))
                await asyncio.sleep(0)
                assert not is_told.is_set()
            await asyncio.wait_for(is_told.wait(), DEADLINE_S)

    asyncio.run(run())
    assert session.silent == []


TWO_RANKS_EACH = Fake(nodes=[Fake(host=Fake(name=f"n{5 + node}"), first_rank=2 * node, nproc=2) for node in (0, 1)])


def hear(monkeypatch, *exits):
    """Return what is said of these exits, each (rank, exit code), once the notice is due."""
    monkeypatch.setattr(rank_watch, "NOTICE_S", 0.0)
    states = [NodeState(node.host.name, started={0, 1}) for node in TWO_RANKS_EACH.nodes]
    listeners, said = [], []

    @contextmanager
    def subscribe(kind, listener):
        assert kind == messages.EXIT
        listeners.append(listener)
        yield
        listeners.remove(listener)

    async def run():
        with say_early_exits(Fake(states=states, subscribe=subscribe, say=said.append), TWO_RANKS_EACH):
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
