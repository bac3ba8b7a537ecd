"""How long a run continues without its launcher, and the heartbeats that go both ways."""

from __future__ import annotations

import time
from typing import Any

import pytest
from machines.patience import DEADLINE_S

from launcher.node import system
from launcher.node.loop import Loop
from launcher.node.supervisor import Lease


class Sent(list[dict[str, Any]]):
    """Stands for the SendQueue."""

    sent_at = 0.0

    def send(self, kind: str, **fields: Any) -> None:
        self.append({"type": kind, **fields})
        self.sent_at = time.monotonic()


class Scene:
    def __init__(self, silence_s: float, **fields: Any) -> None:
        self.loop = Loop()
        self.sent = Sent()
        self.late: list[float] = []
        self.lease = Lease(self.loop, self.sent, self.late.append)  # type: ignore[arg-type]
        self.sleeps_along = self.lease.grant({"silence_s": silence_s, **fields})

    def run(self, seconds: float) -> None:
        over: list[int] = []
        self.loop.call_later(seconds, lambda: over.append(1))
        while not over:
            self.loop.run_once()


def test_it_ends_neither_sooner_nor_later_than_what_arrives_allows() -> None:
    scene, now = Scene(0.0625), [100.0]
    scene.lease.clock = lambda: now[0]
    for _ in range(6):
        scene.lease.renew()
        now[0] += 0.06
        scene.run(0.1)
    assert scene.late == []
    scene.lease.renew()
    now[0] += 0.0625
    scene.run(0.1)
    assert scene.late == [0]


@pytest.mark.parametrize(
    ("boot_id", "is_same"), [(system.boot_id(), True), ("that of another machine", False), (None, False)]
)
def test_time_in_suspend_counts_unless_the_launcher_is_suspended_too(boot_id: str | None, is_same: bool) -> None:
    scene = Scene(15, boot_id=boot_id)
    assert scene.sleeps_along == is_same
    assert (scene.lease.clock is time.monotonic) == is_same


def test_it_is_looked_at_more_than_once() -> None:
    """The timers of a loop stop while the machine is suspended, and then last as long as before."""

    delays: list[float] = []

    class Timers:
        def call_later(self, delay_s: float, callback: object) -> None:
            delays.append(delay_s)

        def cancel(self, timer: object) -> None:
            pass

    Lease(Timers(), Sent(), lambda late_s: None).grant({"silence_s": 10})  # type: ignore[arg-type]
    assert delays == [6, 4, 4]


def test_no_beat_is_sent_beside_what_else_is() -> None:
    scene = Scene(0.2)
    scene.sent.sent_at = time.monotonic() + DEADLINE_S  # as if something were just being sent
    scene.run(0.3)
    assert scene.sent == [{"type": "beat"}]
