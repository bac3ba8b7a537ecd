"""Sessions that live side by side, in one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.job.job import Timeouts
from launcher.node.processes import stop_steps
from launcher.output.lines import STDOUT
from launcher.output.node_output import NodeOutput
from launcher.session.node_state import Stage
from launcher.session.session import Session
from launcher.session.settings import Settings
from launcher.session.signals import Interrupted
from launcher.transports.process_channel import LocalTransport


def make_session(*names: str, silence_s: float = 5, say: Callable[[str], None] = print) -> Session:
    """Return a session with these hosts, or with nobody."""
    hosts, outputs = [Host(name) for name in names], [NodeOutput(name, None, None) for name in names]
    settings = Settings("r", {}, [], Timeouts(1, silence_s, 1))
    return Session(hosts, LocalTransport(), outputs, settings, say=say, progress=print)


async def is_interrupted(session: Session, within_s: float) -> bool:
    try:
        return await session.pump(lambda: False, time.monotonic() + within_s)
    except Interrupted as interruption:
        return interruption.number == signal.SIGTERM


def test_a_signal_reaches_every_session_that_catches_it() -> None:
    async def run() -> list[bool]:
        first, second, third = make_session(), make_session(), make_session()
        with first.catch_signals():
            with second.catch_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                found = [await is_interrupted(first, DEADLINE_S), await is_interrupted(second, DEADLINE_S)]
            with third.catch_signals():
                pass
            os.kill(os.getpid(), signal.SIGTERM)
            found += [await is_interrupted(first, DEADLINE_S), await is_interrupted(second, 0.1)]
        return found

    assert asyncio.run(run()) == [True, True, True, False]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_last_session_gives_the_signals_back() -> None:
    async def run() -> None:
        with make_session().catch_signals():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(DEADLINE_S)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())


def test_a_sigquit_that_comes_ignored_is_caught_all_the_same() -> None:
    """As in a script's background; any other signal stays ignored, and both are so again at the end."""
    heard: list[str] = []

    async def run() -> bool:
        first, second = make_session(), make_session()
        with first.catch_signals(on_quit=lambda: heard.append("first")):
            with second.catch_signals(on_quit=lambda: heard.append("second")):
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGQUIT)
                assert await first.pump(lambda: len(heard) == 1, time.monotonic() + DEADLINE_S)
                assert await second.pump(lambda: len(heard) == 2, time.monotonic() + DEADLINE_S)
            os.kill(os.getpid(), signal.SIGQUIT)
            return await first.pump(lambda: False, time.monotonic() + 0.1)

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        assert not asyncio.run(run())
        assert heard == ["first", "second", "first"]
        assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_quiet_nodes_are_at_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rank 0 alone prints, the others run in silence for days."""
    monkeypatch.setattr("launcher.session.session.NOTICE_S", 0.0)  # it looks whenever no event is there

    async def run() -> list[str]:
        said: list[str] = []
        session = make_session("n1", "n2", "n3", say=said.append)
        looks = iter(range(15))  # three at each stage

        def is_done() -> bool:
            number = next(looks)
            if number == 3:
                session.states[0].stage = session.states[1].stage = Stage.IMPORTING_TORCH
            if number == 6:
                session.states[0].stage = session.states[1].stage = Stage.RUNNING_RANKS
            if number == 9:
                session.outputs[0].feed(0, STDOUT, b"half a line")
                session.outputs[0].feed(0, STDOUT, b" and the rest\n")
                session.states[2].stage = Stage.RUNNING_RANKS
            if number == 12:
                session.states[0].stage = Stage.STOPPING  # it saves
            return number == 14

        await session.pump(is_done)
        return said

    assert asyncio.run(run()) == [
        "launch: waiting for n[1-3]: connecting",
        "launch: waiting for n[1-2]: importing torch",
        "launch: waiting for n[1-2]: running, no output yet",
        "launch: waiting for n1: stopping its processes",
    ]


def test_a_stop_is_waited_for_while_a_driver_frees_the_memory_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node says what is left only then, and after a second Ctrl-C as early as it can."""
    deadlines: list[float] = []

    async def pump(is_done: Callable[[], bool], deadline: float = 0) -> bool:
        deadlines.append(deadline - time.monotonic())
        if len(deadlines) == 1:
            raise Interrupted(signal.SIGINT)
        return True

    async def run() -> None:
        session = make_session(say=lambda text: None)
        monkeypatch.setattr(session, "pump", pump)
        await session.stop_all(15)

    asyncio.run(run())
    assert deadlines[0] > 15 + stop_steps.REST_S + stop_steps.GPU_CENSUS_S
    assert stop_steps.REST_S + stop_steps.CENSUS_S < deadlines[1] < 10


def test_heartbeats_that_fail_end_the_waiting() -> None:
    async def run() -> None:
        session = make_session(silence_s=0.1)
        session._pool._clock = lambda: 1 / 0
        session.open()
        try:
            await session.pump(lambda: False, time.monotonic() + 60)
        finally:
            session._pool.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
