"""The connections to all hosts of a job: threads transfer the bytes, asyncio makes the decisions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from launcher.clock import boottime, wall_clock
from launcher.concurrency import start_task
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.open_files import allow_open_files
from launcher.session.connection import Connection, Event, OutputSink
from launcher.session.settings import Settings
from launcher.transports.base import Transport

CONNECT_WINDOW = 64  # one GIL serves all key exchanges, and sshd's banner time-out is 15 s
FILES_PER_HOST = 8  # open at the same time: an ssh has five, while others log in
OWN_FILES = 64

CALL = "call"


class ConnectionPool:
    """The connections to all hosts of a job, with one queue of events.

    `connections[i]` is the connection to host i. `reconnect` replaces it, so nobody should keep a connection across an
    await. `events` belongs to the event loop: other threads add theirs through `post`. The events of one connection are
    queued in the order in which they came; between hosts only `at` gives an order. Events of kind CALL belong to no
    host, and their index is -1.

    From `start` until all of them are closed one task renews the leases and closes the connections to silent hosts. If
    it fails, that is raised: without it, every node would end the run.
    """

    def __init__(
        self, hosts: Sequence[Host], transport: Transport, outputs: Sequence[OutputSink], settings: Settings, mark: str,
        *, clock: Callable[[], float] = boottime,
    ) -> None:  # fmt: skip
        """mark: the start of those of the processes; clock: seconds, including those for which this machine sleeps."""
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._window = threading.Semaphore(CONNECT_WINDOW)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._outputs = outputs
        self._settings = settings
        self.connections = [  # two hosts may be one machine, and each supervisor ends its own share only
            Connection(index, host, transport, settings, output, self.post, f"{mark}.{index}")
            for index, (host, output) in enumerate(zip(hosts, outputs, strict=True))
        ]
        self._lease_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self, first_messages: Sequence[bytes]) -> None:
        """Connect to all hosts at once; each gets its first message once it is reached, and posts READY, or LOST."""
        allow_open_files(OWN_FILES + FILES_PER_HOST * len(self.connections))
        for connection, first_message in zip(self.connections, first_messages, strict=True):
            connection.start(self._window, first_message)
        self._lease_task = self.watch(self._keep_leases())

    def reconnect(self, index: int, first_message: bytes, connect_timeout_s: float) -> None:
        """Replace the connection to one host by a new one, which posts READY or LOST again."""
        lost = self.connections[index]
        lost.close()
        settings = replace(
            self._settings, timeouts=replace(self._settings.timeouts, connect_timeout_s=connect_timeout_s)
        )
        fresh = Connection(index, lost.host, self._transport, settings, self._outputs[index], self.post, lost.mark)
        self.connections[index] = fresh
        fresh.start(self._window, first_message)

    def call(self, action: Callable[[], object]) -> None:
        """Queue a call, behind the events that came before it; whoever takes events raises what it raises."""
        self.events.put_nowait(Event(-1, CALL, {"action": action}, wall_clock()))

    def watch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task on which the job depends; its failure is queued as a call that raises it."""
        return start_task(work, lambda error: self.call(partial(_raise, error)))

    def broadcast(self, kind: str, **fields: Any) -> None:
        """Send one message to every connected node."""
        for connection in self.connections:
            connection.send(kind, **fields)

    def close(self) -> None:
        """Close all connections but the idle ones: these hosts hold claims for the next attempt.

        Their leases are renewed until whoever takes the connections closes them.
        """
        self._is_closed = True
        for connection in self.connections:
            if not connection.is_idle:
                connection.close()
        if self._lease_task is not None and self._is_done():
            self._lease_task.cancel()

    def _is_done(self) -> bool:
        return self._is_closed and all(each.is_over or not each.is_idle for each in self.connections)

    def post(self, events: Sequence[Event]) -> None:
        """Queue events, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._put, events)

    def _put(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.put_nowait(event)

    async def _keep_leases(self) -> None:
        wait_s = min(1.0, self._settings.timeouts.silence_s / 10)
        beat_at = looked_at = self._clock()
        awake_at = time.monotonic()
        while not self._is_done():
            await asyncio.sleep(wait_s)
            gap_s, looked_at = self._clock() - looked_at, self._clock()
            awake_s, awake_at = time.monotonic() - awake_at, time.monotonic()
            self._admit_standstill(gap_s, awake_s)
            for connection in self.connections:  # while this process was suspended no host was silent
                connection.excuse(awake_s - wait_s, awake_at)
            is_time_to_beat = looked_at >= beat_at
            if is_time_to_beat:
                beat_at = looked_at + self._settings.timeouts.silence_s / messages.BEATS_PER_SILENCE
            for connection in self.connections:
                if not connection.is_over:
                    connection.check_time()
                    if is_time_to_beat and connection.is_ready:
                        connection.beat()

    def _admit_standstill(self, gap_s: float, awake_s: float) -> None:
        """Report that this machine was suspended: hosts that heard nothing, and ended the run, are not to blame.

        awake_s: the same gap without the sleep, which is all that a node on this machine has noticed.
        """
        for connection in self.connections:
            stood_s = awake_s if connection.sleeps_along else gap_s
            if stood_s > self._settings.timeouts.silence_s and connection.is_ready and not connection.is_over:
                connection.admit_standstill(stood_s)


def _raise(error: BaseException) -> None:
    raise error
