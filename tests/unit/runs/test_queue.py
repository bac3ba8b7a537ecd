"""The places of a run in the queue: in which order they are taken, when its turn has come, and on which hosts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from launcher.errors import HostFailure, HostFailureKind, HostsUnreachable
from launcher.hosts.host import Host
from launcher.job.facts import BoxClaim, Gpu, GpuProcess, NodeFacts
from launcher.job.job import Job, Program, ProgramKind
from launcher.node import messages
from launcher.preflight.claims import ClaimOrder
from launcher.runs import queue as queue_module
from launcher.runs.queue import BusyError, Place, Queue, QueueTimeoutError
from launcher.session.connection import Event

JOB = Job(Program(ProgramKind.COMMAND, "true"), gpus=1)
ORDER = ClaimOrder("mine", None, 0.0, 3)
NIGHTLY = BoxClaim("ann", "1", 0.0, "nightly", gpus=(0,))
SWEEP = BoxClaim("bob", "2", 0.0, gpus=(0,), is_waiting=True)


@dataclass
class State:
    facts: NodeFacts | None
    failure: HostFailure | None = None


@dataclass
class FakeSession:
    """Hosts that answer as `steps` say: each is called when the queue waits for something."""

    steps: list[Callable[[FakeSession], object]]
    count: int
    sent: list[tuple[int, bool]] = field(default_factory=list)  # host, and whether a place was asked for
    held: list[int] = field(default_factory=list)  # by hosts, after the end
    listener: Any = None

    def __post_init__(self) -> None:
        self.hosts = [Host(f"g{number}", source="test") for number in range(self.count)]
        self.states = [State(replace(NodeFacts("/tmp/x"), gpus=(Gpu(0, "H100", 1, "1"),))) for _ in self.hosts]

    def catch_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def subscribe(self, kind: str, listener: Any) -> Iterator[None]:
        assert kind == messages.CLAIMED
        self.listener = listener
        yield

    def open(self, **wanted: object) -> None:
        assert wanted["pythons"] == []

    def send(self, index: int, kind: str, **fields: Any) -> None:
        assert (kind, fields["gpus"]) == (messages.CLAIM, [0])
        self.sent.append((index, fields["waits"]))

    async def pump(self, is_done: Callable[[], bool], deadline: float = math.inf) -> bool:
        while not is_done():
            if not self.steps:
                return False
            self.steps.pop(0)(self)
        return True

    def failures(self) -> list[HostFailure]:
        return [state.failure for state in self.states if state.failure is not None]

    async def stop_all(self, timeout_s: float, *, stays: Collection[int]) -> None:
        self.held = [*stays]


def says(index: int, *rivals: BoxClaim, waits: bool = True) -> Callable[[FakeSession], object]:
    fields = {"rivals": list(rivals), "error": None, "waits": waits}
    return lambda session: session.listener(Event(index, messages.CLAIMED, fields, 0.0))


def loses(index: int) -> Callable[[FakeSession], object]:
    def lose(session: FakeSession) -> None:
        session.states[index].failure = HostFailure(f"g{index}", HostFailureKind.SILENT, "no heartbeat")

    return lose


def wait(
    session: FakeSession, needed: int, deadline: float = math.inf, places: list[Place] | None = None
) -> tuple[list[str], list[str]]:
    places = [] if places is None else places
    queue = Queue(JOB, session, ORDER, needed, places.append)  # type: ignore[arg-type]
    chosen = asyncio.run(queue.wait(deadline))
    return [host.name for host in chosen], list(dict.fromkeys(place.describe() for place in places))


def test_its_turn_on_all_hosts() -> None:
    steps = [says(1, NIGHTLY, SWEEP), says(0), says(1, NIGHTLY), says(1), says(0, waits=False), says(1, waits=False)]
    session = FakeSession(steps, 2)
    assert wait(session, 2) == (["g0", "g1"], ["2nd, behind bob's run 2 on g1", "1st, behind ann's nightly on g1"])
    assert session.sent == [(0, True), (1, True), (0, False), (1, False)]
    assert session.held == [0, 1]


def test_some_of_the_hosts_are_enough() -> None:
    """Neither the one that is claimed nor the one that is lost is waited for."""
    steps = [says(0, NIGHTLY), says(1), says(2, SWEEP), loses(2), says(3), says(1, waits=False), says(3, waits=False)]
    session = FakeSession(steps, 4)
    assert wait(session, 2)[0] == ["g1", "g3"]
    assert session.held == [1, 3]


def test_processes_without_a_claim_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session, places = FakeSession([says(0), says(1)], 2), list[Place]()
    facts = session.states[1].facts
    assert facts is not None
    process = GpuProcess(4411, 120 << 10, "bob", "python")
    busy = replace(facts.gpus[0], memory_mib=140 << 10, free_mib=20 << 10, processes=(process,))
    session.states[1].facts = replace(facts, gpus=(busy,))
    with pytest.raises(BusyError):
        wait(session, 2, places=places)
    assert [place.describe() for place in places] == ["1st, behind pid 4411 (python) of bob on g1"]
    assert session.held == [0, 1], "the places stay"
    session.steps = [says(0), says(1)]
    with pytest.raises(QueueTimeoutError):
        wait(session, 2, deadline=0.0)
    assert session.held == [], "nobody waits any more"
    session.steps = [says(0), says(1), says(0, waits=False)]
    assert wait(session, 1) == (["g0"], []), "the other host is enough"
    monkeypatch.setattr(queue_module, "_FRESH_S", -1.0)
    session.steps = [says(0), says(1)]
    with pytest.raises(BusyError):
        wait(session, 2, places=places)
    assert len(places) == 1, "it was seen long ago, and may have ended"


def test_all_are_claimed_or_none() -> None:
    again = [says(0), says(1, NIGHTLY), says(1), says(0, waits=False), says(1, waits=False)]
    steps = [says(0), says(1), says(0, waits=False), says(1, NIGHTLY, waits=False), *again]
    session = FakeSession(steps, 2)
    assert wait(session, 2)[0] == ["g0", "g1"]
    both = [(0, False), (1, False)]
    assert session.sent == [(0, True), (1, True), *both, (0, True), (1, True), *both]


def test_too_few_hosts() -> None:
    session = FakeSession([says(0, NIGHTLY), loses(1)], 2)
    with pytest.raises(HostsUnreachable) as caught:
        wait(session, 2)
    assert [failure.host for failure in caught.value.failures] == ["g1"]
    assert session.held == [0, 1], "it may try again"
    session = FakeSession([says(0)], 2)
    session.states[1] = State(None, HostFailure("g1", HostFailureKind.TIMED_OUT, "doesn't respond"))
    with pytest.raises(HostsUnreachable):
        wait(session, 2)
    assert (session.sent, session.held) == ([(0, True)], [0, 1])


def test_its_time_is_over() -> None:
    session = FakeSession([says(0, NIGHTLY)], 1)
    with pytest.raises(QueueTimeoutError):
        wait(session, 1, deadline=0.0)
    assert session.held == []
