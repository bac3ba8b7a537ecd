"""When a run counts as one that runs: all its ranks have, for a while, and no host is silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.job.job import Program, ProgramKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.runs import settled
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
    monkeypatch.setattr(settled, "SETTLED_S", 0.0)
    monkeypatch.setattr(settled, "RECHECK_S", 0.0)
    session = TalkingSession(silent)

    async def run() -> None:
        is_settled = asyncio.Event()
        with settled.call_when_settled(session, PLAN, is_settled.set):  # type: ignore[arg-type]
            for index, state in enumerate(session.states):
                state.started.add(0)
                session.tell(Event(index, messages.STARTED, {"local_rank": 0}, 1.0))
                await asyncio.sleep(0)
                assert not is_settled.is_set()
            await asyncio.wait_for(is_settled.wait(), DEADLINE_S)

    asyncio.run(run())
    assert session.silent == []
