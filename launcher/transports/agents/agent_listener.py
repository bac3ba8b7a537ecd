"""Accepting connections on a port that anybody may reach: agents, port scanners and broken programs."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial

from launcher.concurrency import start_task
from launcher.transports.agents.link import AgentLink

HANDSHAKE_S = 10.0
HELLO_S = 10.0
MOST_STRANGERS = 1024  # connections that have not proved themselves, at the same time; each costs a descriptor
MOST_GUESTS = 64  # of those, for which TLS has begun, which takes some 300 KiB each
MOST_OF_SOURCE = 32  # of those, from one address
ROOM_S = 2.0  # a guest has at least so long before the next one of its address takes its place
_BACKLOG = 4096  # agents that wait until this process comes to them
_PAUSE_S = 0.1  # before the next try if this process has no descriptor left
_CLIENT_HELLO = b"\x16"  # how a TLS client begins: the type of a handshake's record (RFC 8446, 5.1)
_SITE_BITS = 64  # of an IPv6 address: one host may have all addresses behind them


def open_port(ports: Sequence[int]) -> socket.socket:
    """Listen on the first of these ports that is free, on all addresses, of IPv6 too if this machine has it.

    0 lets the system choose.
    """
    for port in ports[:-1]:
        with contextlib.suppress(OSError):
            return _open_port(port)
    return _open_port(ports[-1])


def _open_port(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # it is disabled
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


class AgentListener:
    """Takes connections until each has proved itself or failed to; a stranger is counted, and never mentioned.

    A stranger costs a descriptor and a task until it has begun TLS, as an agent does at once; then it becomes a guest,
    if there is a place for its address. If there are too many strangers, the oldest of the address with the most goes;
    so nobody keeps an agent with another address out, nor one with the same address unless it begins TLS as often.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, make_link: Callable[[], AgentLink],
        most_strangers: int = MOST_STRANGERS,
    ) -> None:  # fmt: skip
        self.refused = 0
        self._most_strangers = most_strangers
        self._listener = listener
        self._context = context
        self._make_link = make_link
        self._strangers: dict[str, dict[asyncio.Task[None], None]] = {}  # by source, oldest first; without guests
        self._guests: dict[str, dict[asyncio.Task[None], float]] = {}  # by source: since when, oldest first
        self._queue: dict[asyncio.Future[None], tuple[str, asyncio.Task[None]]] = {}  # who waits for a place
        self._next_look: asyncio.TimerHandle | None = None
        self._links: set[AgentLink] = set()  # whose sockets may be open
        listener.setblocking(False)

    async def accept(self) -> None:
        """Take connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the stranger has gone
                await asyncio.sleep(_PAUSE_S)
                continue
            source = find_source(address[0])
            # Whatever fails here was counted, and is that stranger's: the others must not notice.
            task = start_task(self._meet(sock, source), lambda error: None)
            self._strangers.setdefault(source, {})[task] = None
            task.add_done_callback(partial(self._forget, source))
            await asyncio.sleep(0)  # the task takes its socket over before anybody cancels it
            if _count(self._strangers) > self._most_strangers:
                busiest = max(self._strangers.values(), key=len)
                oldest = next(iter(busiest))
                oldest.cancel()
                await asyncio.wait([oldest])

    async def close(self) -> None:
        """End all connections; `accept` must have been cancelled."""
        await asyncio.sleep(0)  # each task that was started takes its socket over
        tasks = [task for places in (self._strangers, self._guests) for found in places.values() for task in found]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in list(self._links):
            link.abort()
            await link.closed

    def _forget(self, source: str, task: asyncio.Task[None]) -> None:
        for places in (self._strangers, self._guests):
            places.get(source, {}).pop(task, None)
            if not places.get(source, True):
                del places[source]
        self._fill_places()

    # ---- one connection -------------------------------------------------------------------------------------------

    async def _meet(self, sock: socket.socket, source: str) -> None:
        """See a connection through TLS's handshake and the HELLO."""
        link: AgentLink | None = None
        is_proven = False
        try:
            await asyncio.wait_for(_await_client_hello(sock), HANDSHAKE_S)
            await self._take_place(source)
            link = self._make_link()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link, sock, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            self._links.add(link)
            link.closed.add_done_callback(lambda _: self._links.discard(link))
            is_proven = await asyncio.wait_for(link.is_proven, HELLO_S)
        except (OSError, asyncio.TimeoutError):
            pass  # it is counted
        finally:
            if not is_proven:
                self.refused += 1
            if link is None:
                sock.close()
            elif not is_proven:
                link.abort()

    async def _take_place(self, source: str) -> None:
        """Wait until this task's connection may begin TLS."""
        task, turn = asyncio.current_task(), asyncio.get_running_loop().create_future()
        assert task is not None  # `accept` has made it
        self._queue[turn] = (source, task)
        self._fill_places()
        try:
            await turn
        finally:
            self._queue.pop(turn, None)

    def _fill_places(self) -> None:
        """Give places to those who wait; if none is free, to one of the busiest address when that had its time.

        An address that has more than one place more than the one that waits gives one up at once.
        """
        loop = asyncio.get_running_loop()
        now, look_at = loop.time(), math.inf
        full: set[str] = set()  # for these addresses there is no place now
        for turn, (source, task) in list(self._queue.items()):
            if source in full:
                continue
            rivals = self._find_rivals(source)
            if rivals:
                oldest, since = next(iter(rivals.items()))
                if now < since + ROOM_S and len(rivals) <= len(self._guests.get(source, {})) + 1:
                    look_at = min(look_at, since + ROOM_S)
                    full.add(source)
                    continue
                del rivals[oldest]
                oldest.cancel()
            del self._queue[turn], self._strangers[source][task]
            self._guests.setdefault(source, {})[task] = now
            turn.set_result(None)
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = loop.call_at(look_at, self._fill_places) if self._queue else None

    def _find_rivals(self, source: str) -> dict[asyncio.Task[None], float]:
        """Return those of whom one must go before this address gets a place, the oldest first; none if one is free."""
        own = self._guests.get(source, {})
        if len(own) >= MOST_OF_SOURCE:
            return own
        is_full = _count(self._guests) >= MOST_GUESTS
        return max(self._guests.values(), key=len) if is_full else {}


async def _await_client_hello(sock: socket.socket) -> None:
    """Wait until a connection begins TLS, and leave what came where it is; raise OSError if it does not."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def look() -> None:
        if not came.done():
            try:
                came.set_result(sock.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                pass
            except OSError as error:
                came.set_exception(error)

    loop.add_reader(sock, look)
    try:
        if await came != _CLIENT_HELLO:
            raise OSError("no TLS")
    finally:
        loop.remove_reader(sock)


def _count(places: Mapping[str, Sized]) -> int:
    return sum(map(len, places.values()))


def find_source(address: str) -> str:
    """Return what counts as one source of connections: an IPv4 address, or all IPv6 addresses of one site."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _SITE_BITS), strict=False))
