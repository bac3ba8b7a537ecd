"""How long a run continues without its launcher, and the heartbeats that go both ways."""

from __future__ import annotations

import time
from typing import Any

import pytest
from machines.patience import DEADLINE_S

from launcher.node import clock
from launcher.node.lease import Lease
from launcher.node.loop import Loop


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


def test_it_ends_once_after_the_silence() -> None:
    began_at = time.monotonic()
    scene = Scene(0.2)
    while not scene.late:
        scene.loop.run_once()
    assert 0.15 < time.monotonic() - began_at < DEADLINE_S
    assert 0 <= scene.late[0] < DEADLINE_S
    scene.run(0.5)
    assert len(scene.late) == 1


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


def test_before_it_is_granted_it_is_long_and_nothing_is_sent() -> None:
    loop, sent = Loop(), Sent()
    assert Lease(loop, sent, lambda late_s: None).silence_s == 15  # type: ignore[arg-type]
    loop.call_later(0.1, lambda: None)
    loop.run_once()
    assert sent == []


@pytest.mark.parametrize(
    ("boot_id", "is_same"), [(clock.boot_id(), True), ("that of another machine", False), (None, False)]
)
def test_time_in_suspend_counts_unless_the_launcher_is_suspended_too(boot_id: str | None, is_same: bool) -> None:
    scene = Scene(15, boot_id=boot_id)
    assert scene.sleeps_along == is_same
    assert (scene.lease.clock is time.monotonic) == is_same


def test_where_nobody_knows_the_boot_nobody_sleeps_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_BOOT_ID", "/nowhere")
    assert not Scene(15, boot_id=None).sleeps_along


def test_time_in_suspend_is_told() -> None:
    scene = Scene(0.2)
    awake = scene.lease.clock
    scene.lease.clock = lambda: awake() + 1000  # it has been suspended
    while not scene.late:
        scene.loop.run_once()
    assert 999 < scene.late[0] < 1001


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


def test_an_echo_says_how_long_it_was_held() -> None:
    scene = Scene(0.5)
    assert scene.sent == [{"type": "beat"}]
    scene.lease.hear({"at": 17.5}, b"")
    while len(scene.sent) < 4:
        scene.loop.run_once()
    _, echo, *rest = scene.sent
    assert echo["echo"] == 17.5
    assert 0 < echo["held_s"] < DEADLINE_S
    assert rest == [{"type": "beat"}] * 2


def test_a_beat_without_its_time_is_not_echoed() -> None:
    scene = Scene(0.2)
    scene.lease.hear({"at": 17.5}, b"")
    scene.lease.hear({}, b"")
    while len(scene.sent) < 3:
        scene.loop.run_once()
    assert scene.sent == [{"type": "beat"}] * 3


def test_no_beat_is_sent_beside_what_else_is() -> None:
    scene = Scene(0.2)
    scene.sent.sent_at = time.monotonic() + DEADLINE_S  # as if something were just being sent
    scene.run(0.3)
    assert scene.sent == [{"type": "beat"}]
