"""Accepting connections on a port that anybody may reach: agents, port scanners and broken programs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from launcher.concurrency import start_task
from launcher.transports.agents.link import AgentLink

HANDSHAKE_S = 10.0
HELLO_S = 10.0
MOST_STRANGERS = 256  # connections that have not proved themselves, at the same time
ROOM_S = 2.0  # beyond those, the oldest one is closed if it has had this long
_BACKLOG = 4096  # agents that wait while there is no room
_PAUSE_S = 0.1  # before the next try if this process has no descriptor left


def open_port() -> socket.socket:
    """Listen on a port that the system chooses, on all addresses, of IPv6 too if this machine has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # it is disabled
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", 0), backlog=_BACKLOG)


class Doorway:
    """Takes connections until each has proved itself or failed to; a stranger is counted, and never mentioned.

    Strangers are limited in number, time and memory: 4 KiB each, besides what TLS needs. If there are too many, new
    connections wait in the kernel, where an agent loses nothing but time.
    """

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, make_link: Callable[[], AgentLink]) -> None:
        self.refused = 0
        self._listener = listener
        self._context = context
        self._make_link = make_link
        self._strangers: dict[asyncio.Task[None], float] = {}  # since when, oldest first
        self._left = asyncio.Event()
        self._links: set[AgentLink] = set()  # whose sockets may be open
        listener.setblocking(False)

    async def accept(self) -> None:
        """Take connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left, or the stranger has gone
                await asyncio.sleep(_PAUSE_S)
                continue
            # Whatever fails here was counted, and is that stranger's: the others must not notice.
            task = start_task(self._meet(sock), lambda error: None)
            self._strangers[task] = loop.time()
            task.add_done_callback(self._forget)

    async def close(self) -> None:
        """End all connections; `accept` must have been cancelled."""
        await asyncio.sleep(0)  # each task that was started takes its socket over
        for task in list(self._strangers):
            task.cancel()
        if self._strangers:
            await asyncio.wait(list(self._strangers))
        for link in list(self._links):
            link.abort()
            await link.closed

    async def _make_room(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._strangers) >= MOST_STRANGERS:
            oldest, since = next(iter(self._strangers.items()))
            wait_s = since + ROOM_S - loop.time()
            if wait_s <= 0:
                oldest.cancel()
                await asyncio.wait([oldest])
                continue
            self._left.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._left.wait(), wait_s)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._strangers[task]
        self._left.set()

    async def _meet(self, sock: socket.socket) -> None:
        """See a connection through TLS's handshake and the HELLO."""
        link = self._make_link()
        is_proven = False
        try:
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
                link.abort()
