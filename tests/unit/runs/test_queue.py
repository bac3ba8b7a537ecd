"""The places of a run in the queue: in which order they are taken, when its turn has come, and on which hosts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
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
from launcher.runs.queue import OutOfLineError, Place, Queue, QueueTimeoutError
from launcher.session.connection import Event

JOB = Job(Program(ProgramKind.COMMAND, "true"), gpus=1)
ORDER = ClaimOrder("mine", None, 0.0, 3, lost_reserve_s=120.0)
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
    uuids: tuple[str, ...]
    sent: list[tuple[int, bool]] = field(default_factory=list)  # host, and whether a place was asked for
    reserved: dict[int, float] = field(default_factory=dict)
    listener: Any = None

    def __post_init__(self) -> None:
        self.hosts = [Host(f"g{number}", source="test") for number in range(len(self.uuids))]
        facts = [replace(NodeFacts("/tmp/x"), gpus=(Gpu(0, "H100", 1, "1", uuid=uuid),)) for uuid in self.uuids]
        self.states = [State(fact) for fact in facts]

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

    async def stop_all(self, timeout_s: float, *, reserve_s: dict[int, float]) -> None:
        self.reserved = reserve_s


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
    chosen = asyncio.run(queue.wait(lambda: None, deadline))
    return [host.name for host in chosen], [place.describe() for place in places]


def test_places_are_taken_in_the_order_of_the_uuids_and_only_by_the_first() -> None:
    steps = [says(1, NIGHTLY, SWEEP), says(1, NIGHTLY), says(0), says(1), says(0, waits=False), says(1, waits=False)]
    session = FakeSession(steps, ("b", "a"))
    assert wait(session, 2) == (
        ["g0", "g1"],
        ["2nd, behind bob's run 2 on g1", "1st, behind ann's nightly on g1"],
    )
    assert session.sent == [(1, True), (0, True), (0, False), (1, False)]
    assert session.reserved == {0: 60.0, 1: 60.0}


def test_some_of_the_hosts_are_enough() -> None:
    steps = [says(0, NIGHTLY), says(1), says(2), says(1, waits=False), says(2, waits=False)]
    session = FakeSession(steps, ("a", "b", "c"))
    assert wait(session, 2) == (["g1", "g2"], ["1st, behind ann's nightly on g0"])
    assert session.reserved == {1: 60.0, 2: 60.0}


def test_processes_without_a_claim_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session, places = FakeSession([says(0), says(1)], ("a", "b")), list[Place]()
    facts = session.states[1].facts
    assert facts is not None
    process = GpuProcess(4411, 120 << 10, "bob", "python")
    busy = replace(facts.gpus[0], memory_mib=140 << 10, free_mib=20 << 10, processes=(process,))
    session.states[1].facts = replace(facts, gpus=(busy,))
    with pytest.raises(OutOfLineError):
        wait(session, 2, places=places)
    assert [place.describe() for place in places] == ["1st, behind pid 4411 (python) of bob on g1"]
    assert session.reserved == {0: 60.0, 1: 60.0}, "the places stay"
    session.steps = [says(0), says(1)]
    with pytest.raises(QueueTimeoutError):
        wait(session, 2, deadline=0.0)
    assert session.reserved == {}, "nobody waits any more"
    session.steps = [says(0), says(1), says(0, waits=False)]
    assert wait(session, 1) == (["g0"], []), "the other host is enough"
    monkeypatch.setattr(queue_module, "_FRESH_S", -1.0)
    session.steps = [says(0), says(1)]
    with pytest.raises(OutOfLineError):
        wait(session, 2, places=places)
    assert len(places) == 1, "it was seen long ago, and may have ended"


def test_others_before_it_on_a_host_that_it_can_do_without() -> None:
    session = FakeSession([says(0, SWEEP), says(1, NIGHTLY), says(2), says(2, waits=False)], ("a", "b", "c"))
    assert wait(session, 1)[0] == ["g2"]
    assert session.sent == [(0, True), (1, True), (2, True), (2, False)]
    # Here it needs two of them: it waits on the second host, and takes no place behind that.
    steps = [says(0, SWEEP), says(1, SWEEP), says(1), says(2), says(1, waits=False), says(2, waits=False)]
    session = FakeSession([*steps[:2], lambda _: None, *steps[2:]], ("a", "b", "c"))
    assert wait(session, 2)[0] == ["g1", "g2"]
    session = FakeSession(steps[:2], ("a", "b", "c"))
    with pytest.raises(QueueTimeoutError):
        wait(session, 2, deadline=0.0)
    assert session.sent == [(0, True), (1, True)]


def test_a_place_that_it_should_not_have_taken() -> None:
    """Another run waits for it on the second host, and it would wait for that run on the first one."""
    lost = FakeSession([says(0, SWEEP), says(1), says(2, NIGHTLY), loses(2)], ("a", "b", "c"))
    came_back = FakeSession([says(0), says(1, NIGHTLY), says(0, SWEEP)], ("a", "b"))
    for session in (lost, came_back):
        with pytest.raises(OutOfLineError):
            wait(session, 2)
        assert session.reserved == {}


def test_all_are_claimed_or_none() -> None:
    again = [says(0), says(1, NIGHTLY), says(1), says(0, waits=False), says(1, waits=False)]
    steps = [says(0), says(1), says(0, waits=False), says(1, NIGHTLY, waits=False), *again]
    session = FakeSession(steps, ("a", "b"))
    assert wait(session, 2)[0] == ["g0", "g1"]
    both = [(0, False), (1, False)]
    assert session.sent == [(0, True), (1, True), *both, (0, True), (1, True), *both]


def test_a_lost_host_is_in_nobodys_way() -> None:
    steps = [says(0, SWEEP), loses(0), says(1), says(2), says(1, waits=False), says(2, waits=False)]
    session = FakeSession(steps, ("a", "b", "c"))
    assert wait(session, 2) == (["g1", "g2"], ["2nd, behind bob's run 2 on g0"])


def test_too_few_hosts() -> None:
    session = FakeSession([says(0, NIGHTLY), loses(1)], ("a", "b"))
    with pytest.raises(HostsUnreachable) as caught:
        wait(session, 2)
    assert [failure.host for failure in caught.value.failures] == ["g1"]
    assert session.reserved == {0: 120.0, 1: 120.0}, "it may try again"


def test_its_time_is_over() -> None:
    session = FakeSession([says(0, NIGHTLY)], ("a",))
    with pytest.raises(QueueTimeoutError):
        wait(session, 1, deadline=0.0)
    assert session.reserved == {}


def test_places_stay_while_another_host_is_away() -> None:
    session = FakeSession([says(0)], ("a", "b"))
    session.states[1] = State(None, HostFailure("g1", HostFailureKind.TIMED_OUT, "doesn't respond"))
    with pytest.raises(HostsUnreachable):
        wait(session, 2)
    assert (session.sent, session.reserved) == ([(0, True)], {0: 120.0, 1: 120.0})


def test_without_uuids_the_machines_give_the_order() -> None:
    session = FakeSession([says(1), says(0), says(0, waits=False), says(1, waits=False)], ("", ""))
    for state, machine in zip(session.states, ("m2", "m1"), strict=True):
        assert state.facts is not None
        state.facts = replace(state.facts, machine=machine)
    assert wait(session, 2)[0] == ["g0", "g1"]
    assert session.sent[:2] == [(1, True), (0, True)]
