"""All agents of a run: the port that they dial, which of them are connected, and what all of them are told."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.clock import boottime
from launcher.concurrency import start_task, start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.open_files import allow_open_files
from launcher.transports.agents.agent_listener import AgentListener, open_port
from launcher.transports.agents.channel import AgentChannel
from launcher.transports.agents.credentials import Credentials, make_server_context
from launcher.transports.agents.link import AgentLink, Header
from launcher.transports.base import TransportError
from launcher.wording import age

OWN_FILES = 64
FILES_PER_HOST = 8  # its connection, its log, and more while it starts
MOST_STRANGERS = 64  # besides the agents, which may dial all at once; TLS takes 300 KiB for each
RETURN_S = 6.0  # for agents that were cut off to dial again, which they do every 5 s, and to hear that it is over
LEAVE_S = 10.0  # for agents to leave, once their processes have ended


@dataclass(frozen=True, slots=True)
class Absence:
    """A host whose agent is not connected."""

    host: str
    missing_s: float


@dataclass(frozen=True, slots=True)
class Return:
    """A host whose agent is connected again."""

    host: str
    missing_s: float  # before that


@dataclass(slots=True)
class _Seen:
    """What was seen of an agent."""

    lost_at: float | None = None  # of launcher.clock.boottime
    tried: str = ""  # from where it could not be started again, and why


@dataclass(frozen=True, slots=True)
class Notice:
    """The command of --notify for a host of the run that can't reach its controller any more."""

    command: str = field(repr=False)
    variables: Mapping[str, str]  # for the environment of the command
    own: str  # the name of the controller's host


class Hub:
    """The controller's end of all agents, from `listen` to `close`.

    One thread runs an event loop with all connections, and never waits for a caller: what a channel holds is bounded by
    its window. The public methods may be called in any other thread. `_changed` guards `_links`, and is notified of
    every change; `_links` holds at most one link for each agent, one that was admitted and isn't lost. `_changed` also
    guards `_seen` and `_returns`. Only the hub's thread uses `_absent`.

    If the loop fails, which it should not, all connections are lost and the hub is as good as closed.
    """

    def __init__(
        self, run_id: str, names: Sequence[str], credentials: Credentials, *, silence_s: float,
        on_change: Callable[[], object], may_rejoin: bool = False, notice: Notice | None = None,
    ) -> None:  # fmt: skip
        """names: of the hosts, by the index of their agent; on_change: called in the hub's thread, must not block.

        may_rejoin: a host that is missing is waited for; notice: one agent runs it if this controller is gone.
        """
        self.run_id = run_id
        self._may_rejoin = may_rejoin
        self._indexes = {name: index for index, name in enumerate(names)}
        self._names = tuple(names)
        self._credentials = credentials
        self._silence_s = silence_s
        self._on_change = on_change
        self._changed = threading.Condition()
        self._links: dict[int, AgentLink] = {}
        self._absent: set[int] = set()  # agents that were cut off, and may dial again
        self._seen = [_Seen() for _ in names]
        self._returns: list[Return] = []
        self._has_started = False
        self._notice = notice
        self._noticed: int | None = None  # the agent that has it
        self._is_closing = False
        self._numbers = itertools.count(1)
        self._agent_listener: AgentListener | None = None
        self._most_strangers = MOST_STRANGERS + len(names)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end = asyncio.Event()
        self._left = asyncio.Event()
        self._leave_s = LEAVE_S

    # ---- in any thread --------------------------------------------------------------------------------------------

    def listen(self, ports: Sequence[int] = (0,)) -> int:
        """Listen on all addresses of this machine; return the port: the first of these that is free.

        0 lets the system choose. Raise LauncherError if this machine has no port or thread left.
        """
        context = make_server_context(self._credentials)
        allow_open_files(OWN_FILES + FILES_PER_HOST * len(self._names) + self._most_strangers)
        try:
            listener = open_port(ports)
        except OSError as error:
            raise LauncherError(f"this machine can't listen on a port: {error.strerror}") from None
        is_serving = threading.Event()
        try:
            self._thread = start_thread(lambda: self._run(listener, context, is_serving), "agents", self._break)
        except LauncherError:
            listener.close()
            raise
        found: int = listener.getsockname()[1]
        is_serving.wait()
        return found

    @property
    def refused(self) -> int:
        """Return how many connections were not an agent's of this run."""
        return self._agent_listener.refused if self._agent_listener is not None else 0

    def has(self, name: str) -> bool:
        """Tell whether the agent of a host is connected now."""
        with self._changed:
            return self._indexes[name] in self._links

    def missing(self) -> list[str]:
        """Return the hosts whose agent is not connected now."""
        with self._changed:
            return [name for name, index in self._indexes.items() if index not in self._links]

    def find_absences(self) -> list[Absence]:
        """Return the hosts whose agent is not connected since GO, or since it was lost."""
        now = boottime()
        with self._changed:
            return [
                Absence(name, now - seen.lost_at)
                for name, seen in zip(self._names, self._seen, strict=True)
                if seen.lost_at is not None and not self._is_closing
            ]

    def take_returns(self) -> list[Return]:
        """Return the hosts whose agents are connected again, each once."""
        with self._changed:
            found, self._returns = self._returns, []
        return found

    def note_try(self, name: str, failure: str) -> None:
        """Note from where, and why, the agent of a host that is missing could not be started again."""
        with self._changed:
            self._seen[self._indexes[name]].tried = failure

    def wait_for_all(self, timeout_s: float) -> list[str]:
        """Block until all agents are connected; return the hosts whose agent is not connected in time."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._links) == len(self._names) or self._is_closing, timeout_s)
        return self.missing()

    def go(self) -> None:
        """Let all agents start processes, also those that connect later."""
        self._call(self._go)

    def open_transport(self) -> AgentTransport:
        """Return the way to the hosts."""
        return AgentTransport(self)

    def open_channel(self, name: str, command: str, timeout_s: float) -> AgentChannel:
        """Start a process on a host, whose agent is waited for if need be; raise TransportError."""
        link = self._find_link(name, timeout_s)
        if link is None:
            raise TransportError(self._describe_absence(name, timeout_s))
        return link.open_channel(next(self._numbers), command)

    def close(self, leave_s: float = LEAVE_S) -> None:
        """End all agents, wait at most `leave_s` for them to leave, and close the port; call it again at any time.

        An agent that was cut off gets some seconds to come back: otherwise it would dial until its time is over. One
        whose host is dead costs these seconds too.
        """
        with self._changed:
            self._is_closing = True
            self._leave_s = leave_s
            self._changed.notify_all()
        self._call(self._begin_end)
        if self._thread is not None:
            self._thread.join()

    def _find_link(self, name: str, timeout_s: float) -> AgentLink | None:
        index = self._indexes[name]
        with self._changed:
            self._changed.wait_for(lambda: index in self._links or self._is_closing, timeout_s)
            return self._links.get(index)

    def _describe_absence(self, name: str, waited_s: float) -> HostFailure:
        """Return why nothing can be started on a host whose agent is missing."""
        with self._changed:
            seen = self._seen[self._indexes[name]]
        missing_s = waited_s if seen.lost_at is None else max(waited_s, boottime() - seen.lost_at)
        text = f"its agent is not connected (for {age(missing_s)})"
        fix = f"launch stop {self.run_id}, and launch again {self.run_id} once all hosts are back"
        if seen.tried:
            text += f", and launch could not start it again {seen.tried}"
        if not self._may_rejoin:
            fix = "check that the host runs and that its network reaches the controller"
        return HostFailure(name, HostFailureKind.TIMED_OUT, text, fix)

    def _call(self, action: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(action)

    # ---- in the hub's thread --------------------------------------------------------------------------------------

    def _run(self, listener: socket.socket, context: ssl.SSLContext, is_serving: threading.Event) -> None:
        try:
            asyncio.run(self._serve(listener, context, is_serving))
        finally:
            listener.close()
            is_serving.set()

    async def _serve(self, listener: socket.socket, context: ssl.SSLContext, is_serving: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        # What asyncio reports here is the failure of a connection, perhaps a stranger's; `connection_lost` follows.
        self._loop.set_exception_handler(lambda loop, context: None)
        agent_listener = AgentListener(
            listener, context, lambda: AgentLink(self._admit, self._lose), self._most_strangers
        )  # fmt: skip
        self._agent_listener = agent_listener
        tasks = [self._start(agent_listener.accept()), self._start(self._beat())]
        is_serving.set()
        try:
            await self._end.wait()
            for link in self._links.values():
                link.send(messages.END)
            return_s = min(RETURN_S, self._leave_s)
            await self._wait_while(lambda: bool(self._links or self._absent), return_s)
            await self._wait_while(lambda: bool(self._links), self._leave_s - return_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await agent_listener.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return start_task(work, self._break)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._silence_s / messages.BEATS_PER_SILENCE)
            for link in self._links.values():
                link.send(messages.BEAT)

    async def _wait_while(self, is_waiting: Callable[[], bool], timeout_s: float) -> None:
        async def wait() -> None:
            while is_waiting():
                self._left.clear()
                await self._left.wait()

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), timeout_s)

    def _admit(self, link: AgentLink, hello: Header) -> bool:
        """Return whether a connection is that of an agent of this run; register it, or end the agent for good."""
        index, token = hello["index"], str(hello["token"]).encode("utf-8", "replace")
        if hello["run"] != self.run_id or index >= len(self._names):
            return False
        if not hmac.compare_digest(token, self._credentials.tokens[index].encode()):
            return False
        older = self._links.get(index)
        if older is not None:
            older.drop(HostFailureKind.CONNECTION, "its agent has connected again")
        if self._is_closing:
            link.send_last(messages.GONE)
            # Only then has it heard that: an earlier end of the connection could overtake the message.
            link.closed.add_done_callback(lambda _: self._forget(index))
            return True
        self._absent.discard(index)
        link.admit(self._names[index], index, self._silence_s)
        with self._changed:  # before the agent can say to others that it is welcome
            self._links[index] = link
            self._note_arrival(index)
            self._changed.notify_all()
        link.send(messages.WELCOME)
        if self._has_started:
            link.send(messages.GO)
        if self._notice is not None:  # another agent has it since this one was lost
            link.send(messages.NOTIFY, variables={})
        self._give_notice()
        self._on_change()
        return True

    def _note_arrival(self, index: int) -> None:
        before, self._seen[index] = self._seen[index], _Seen()
        if before.lost_at is not None:
            self._returns.append(Return(self._names[index], boottime() - before.lost_at))

    def _lose(self, link: AgentLink) -> None:
        with self._changed:
            if self._links.get(link.index) is link:
                del self._links[link.index]
                self._seen[link.index].lost_at = boottime()
            self._changed.notify_all()
        # Without restarts, or before GO, an agent ends with its connection; one that was told to end does so too.
        if self._may_rejoin and self._has_started and not self._end.is_set():
            self._absent.add(link.index)
        self._give_notice()
        self._left.set()
        self._on_change()

    def _forget(self, index: int) -> None:
        self._absent.discard(index)
        self._left.set()

    def _go(self) -> None:
        self._has_started = True
        for link in self._links.values():
            link.send(messages.GO)
        self._give_notice()

    def _give_notice(self) -> None:
        """Let one agent have the notice: the lowest one, but not that of this machine, which may be what fails."""
        is_early = not self._has_started or self._end.is_set()
        if self._notice is None or self._noticed in self._links or is_early:
            return
        own = self._indexes.get(self._notice.own)
        self._noticed = min((index for index in self._links if index != own), default=None)
        if self._noticed is not None:
            link = self._links[self._noticed]
            link.send(messages.NOTIFY, os.fsencode(self._notice.command), variables=dict(self._notice.variables))

    def _begin_end(self) -> None:
        self._end.set()

    def _break(self, error: object) -> None:
        """End everything, without waiting: the hub can't be trusted any more."""
        with self._changed:
            self._is_closing = True
            self._leave_s = 0.0
            self._changed.notify_all()
        self._call(self._begin_end)


class AgentTransport:
    """Starts processes through the agents of a hub."""

    name = "agents"

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def open(self, host: Host, command: str, timeout_s: float) -> AgentChannel:
        return self._hub.open_channel(host.name, command, timeout_s)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
