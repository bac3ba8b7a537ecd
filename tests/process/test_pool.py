"""The launcher's end of a connection, with this machine's own node: what it is told, and by whom it isn't fooled."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from concurrency_limits import refuse_threads
from machines.patience import DEADLINE_S, long_enough
from machines.processes import is_alive, send_signal
from node_process import WAITS, find_marked, shell, wait_until

from launcher.clock import boot_id, boottime
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.job import Timeouts
from launcher.node import messages
from launcher.preflight.claims import ClaimOrder
from launcher.session.connection import LOST, READY, Connection, Event
from launcher.session.pool import ConnectionPool
from launcher.session.settings import Settings
from launcher.transports.process_channel import LocalTransport

MARK = f"pool-test.{os.getpid()}"
TIMEOUT_S = 0.3


class Talk:
    """A pool of this machine alone."""

    def __init__(self, *pythons: str, silence_s: float, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self.disk = threading.Event()
        self.files: dict[str, bytes] = {}
        self.output: dict[tuple[int | None, int], bytes] = defaultdict(bytes)
        self._settings = Settings("test", {}, pythons or [sys.executable], Timeouts(TIMEOUT_S, silence_s, 0.2))
        way, hosts = LocalTransport(), [Host("here")]
        self._pool = ConnectionPool(hosts, way, [self], self._settings, "run.mark", clock=clock)

    def feed(self, local_rank: int | None, stream: int, data: bytes) -> None:
        self.output[local_rank, stream] += data

    def keep_file(self, name: str, content: bytes) -> None:
        if name == "slow":  # as a disk may be
            assert self.disk.wait(DEADLINE_S)
        self.files[name] = content

    @property
    def connection(self) -> Connection:
        return self._pool.connections[0]

    def start(self, **fields: object) -> None:
        settings = self._settings
        order = {"run": settings.run_id, "mark": MARK, "silence_s": settings.timeouts.silence_s, "env": {},
                 "stop_timeout_s": settings.timeouts.stop_timeout_s}  # fmt: skip
        self._pool.start([messages.encode(messages.PREPARE, **{**order, **fields})])

    def run(self, script: str) -> None:
        rank = {"rank": 0, "argv": shell(script), "env": {}}
        self.connection.send(messages.START, processes=[rank], cwd=None)

    async def wait_for(self, kind: str, within_s: float = DEADLINE_S) -> Event:
        """Return the next event of this kind; LOST instead of it fails the test."""
        while True:
            event = await asyncio.wait_for(self._pool.events.get(), within_s)
            self.events.append(event)
            if event.kind == kind:
                return event
            assert event.kind != LOST, event.fields["failure"]

    async def wait_for_failure(self) -> HostFailure:
        failure: HostFailure = (await self.wait_for(LOST)).fields["failure"]
        return failure

    def close(self) -> None:
        self._pool.close()


def talking(
    scene: Callable[[Talk], object], *pythons: str, silence_s: float = 15, clock: Callable[[], float] = boottime,
    **fields: object,
) -> Talk:  # fmt: skip
    """Play a scene with a pool that was started; then nothing of it may be left, in this process or another."""

    async def play() -> Talk:
        talk = Talk(*pythons, silence_s=silence_s, clock=clock)
        talk.start(**fields)
        try:
            await scene(talk)  # type: ignore[misc]
        finally:
            talk.close()
        return talk

    talk = asyncio.run(play())
    wait_until(lambda: not find_marked(MARK))
    wait_until(lambda: not count_threads())
    assert talk.connection.is_over
    return talk


def count_threads() -> int:
    return sum(thread.name in ("read here", "write here") for thread in threading.enumerate())


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Make programs that stand where a node's Python should be; kill those that hang."""
    pids = tmp_path / "pids"

    def make(script: str) -> str:
        path = tmp_path / f"python{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\necho $$ >>{pids}\n{script}\n")
        path.chmod(0o700)
        return str(path)

    yield make
    for pid in map(int, pids.read_text().split() if pids.exists() else ()):
        if is_alive(pid):
            send_signal(pid, signal.SIGKILL)
    wait_until(lambda: not count_threads())


# ---- a node as it should be -----------------------------------------------------------------------------------------


def test_a_connection_from_hello_to_census() -> None:
    async def scene(talk: Talk) -> None:
        await talk.wait_for(READY)
        await talk.wait_for(messages.HELLO)
        talk.run("seq 200000; echo oops >&2; exit 3")
        exit = await talk.wait_for(messages.EXIT)
        assert (exit.fields["local_rank"], exit.fields["code"]) == (0, 3)
        talk.connection.send(messages.STOP, timeout_s=0)
        assert (await talk.wait_for(messages.CENSUS)).fields["left"] == []

    began = time.time()
    talk = talking(scene)
    assert talk.output[0, 1] == "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert talk.output[0, 2] == b"oops\n"
    kinds = [READY, messages.HELLO, messages.STARTED, messages.EXIT, messages.ENDED, messages.CENSUS]
    assert [event.kind for event in talk.events] == kinds
    assert all(event.index == 0 and began <= event.at <= time.time() for event in talk.events)


def test_a_disk_that_is_slow_holds_up_neither_the_loop_nor_a_file() -> None:
    async def scene(talk: Talk) -> None:
        await talk.wait_for(messages.HELLO)
        talk.run('cd "$LAUNCH_FILES"; echo 1 >slow; echo 2 >trace')
        await talk.wait_for(messages.EXIT)
        talk.connection.send(messages.STOP, timeout_s=0)
        assert (await talk.wait_for(messages.CENSUS)).fields["files"] == 2
        talk.disk.set()
        await talk.wait_for(LOST)
        assert talk.files == {"slow": b"1\n", "trace": b"2\n"}

    talking(scene)


def test_what_was_said_before_the_node_was_ready_is_sent() -> None:
    async def scene(talk: Talk) -> None:
        talk.run("echo early")
        await talk.wait_for(messages.EXIT)

    assert talking(scene).output[0, 1] == b"early\n"


def test_an_idle_node_is_kept_after_the_end() -> None:
    """It holds what the run has claimed until the next attempt takes that."""

    def play(silence_s: float) -> None:
        async def scene(talk: Talk) -> None:
            await talk.wait_for(messages.HELLO)
            order = ClaimOrder("pool-test", None, time.time(), 1).as_fields(waits=True)
            talk.connection.send(messages.CLAIM, is_look=False, gpus=[], **order)
            await talk.wait_for(messages.CLAIMED)
            talk.connection.send(messages.STOP, timeout_s=0, stays=True)
            await talk.wait_for(messages.IDLE)
            talk.close()
            with pytest.raises(asyncio.TimeoutError):
                await talk.wait_for(LOST, within_s=2 * silence_s)
            talk.connection.close()
            await talk.wait_for(LOST)

        talking(scene, silence_s=silence_s)

    long_enough(play, 0.6)


# ---- a machine that sleeps ------------------------------------------------------------------------------------------


class SleepyClock:
    """A clock that counts sleep, on a machine that falls asleep when it is told to."""

    slept_s = 0.0

    def __call__(self) -> float:
        return boottime() + self.slept_s


class WakefulClock:
    """A clock on a machine that never sleeps, however long this process waits for its turn: that may look alike."""

    def __init__(self) -> None:
        self._told = self._looked_at = boottime()

    def __call__(self) -> float:
        now = boottime()
        self._told, self._looked_at = self._told + min(0.2, now - self._looked_at), now
        return self._told


def test_a_launch_host_that_slept_blames_no_node() -> None:
    clock = SleepyClock()

    async def scene(talk: Talk) -> None:
        await talk.wait_for(messages.HELLO)
        clock.slept_s = 3600
        failure = await talk.wait_for_failure()
        assert failure.kind is HostFailureKind.STANDSTILL
        assert failure.text.startswith("this machine was suspended for 36")

    talking(scene, clock=clock)


def test_a_node_on_this_very_machine_has_slept_as_well() -> None:
    def play(silence_s: float) -> None:
        clock = SleepyClock()

        async def scene(talk: Talk) -> None:
            assert (await talk.wait_for(messages.HELLO)).fields["sleeps_along"] is True
            talk.run(WAITS)
            await talk.wait_for(messages.STARTED)
            clock.slept_s = 3600
            with pytest.raises(asyncio.TimeoutError):
                await talk.wait_for(LOST, within_s=2 * silence_s)
            talk.connection.excuse(3600.0, time.monotonic())
            assert talk.connection.heard_at <= time.monotonic(), "it could be silent for as long as we slept"

        talking(scene, silence_s=silence_s, clock=clock, boot_id=boot_id())

    long_enough(play, 0.6)


# ---- a machine that has few files or no thread left -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["read here", "write here"])
def test_a_thread_that_can_t_be_started_costs_the_host_its_place_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refuse_threads(monkeypatch, name)

    async def scene(talk: Talk) -> None:
        assert (
            await talk.wait_for_failure()
        ).text == "this machine can't start another thread (can't start new thread)"

    assert [event.kind for event in talking(scene).events] == [LOST]


# ---- what is no node ------------------------------------------------------------------------------------------------


def failure_of(*pythons: str, silence_s: float = 15) -> tuple[str, str]:
    """Return kind and text of what the launcher says of a host."""
    found: list[HostFailure] = []

    async def scene(talk: Talk) -> None:
        found.append(await talk.wait_for_failure())

    talking(scene, *pythons, silence_s=silence_s, clock=WakefulClock())
    assert found[0].host == "here"
    return found[0].kind, found[0].text


def test_no_python_is_there() -> None:
    assert failure_of("nonexistent-python") == ("no python", "no Python 3.8 or newer there (tried nonexistent-python)")
    both = ("nonexistent-python", "/nonexistent/python3")
    text = "no Python 3.8 or newer there (tried nonexistent-python, /nonexistent/python3)"
    assert failure_of(*both) == ("no python", text)


def test_a_host_that_is_a_mac(fake: Callable[[str], str]) -> None:
    python = f'exec {sys.executable} "$1" "$2" "$3" "import sys; sys.platform = \'darwin\'; $4"'
    assert failure_of(fake(python), sys.executable) == ("not linux", "it doesn't run Linux")


GIVES_MARKER = 'echo "$(echo "$*" | grep -o \'~launch [0-9a-f]*\' | head -n 1) missing 3.11"; '


def test_garbage_instead_of_messages(fake: Callable[[str], str]) -> None:
    program = fake(GIVES_MARKER + "echo -bash: what?; cat >/dev/null")
    assert failure_of(program) == ("protocol", "it sent an invalid message: not JSON: b'-bash: what?'")


def test_noise_is_no_sign_of_life(fake: Callable[[str], str]) -> None:
    program = fake(GIVES_MARKER + "exec 3<&0; cat <&3 >/dev/null & exec yes >&2")  # a pipe doesn't hold all the code
    assert failure_of(program, silence_s=0.6) == ("silent", "no heartbeat for 0.6 s")
