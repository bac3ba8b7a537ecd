"""Accepting connections on a port that anybody may reach: agents, port scanners and broken programs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from launcher.concurrency import start_task
from launcher.transports.agents.link import AgentLink

HANDSHAKE_S = 10.0
HELLO_S = 10.0
_BACKLOG = 4096  # agents that wait until this process comes to them
_PAUSE_S = 0.1  # before the next try if this process has no descriptor left


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

    A stranger costs a descriptor and the memory of TLS. If there are too many, the oldest of the address with the most
    goes: so nobody keeps an agent with another address out, nor one with the same address unless as many connections
    come as there may be strangers while it proves itself.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, make_link: Callable[[], AgentLink], most_strangers: int
    ) -> None:
        """most_strangers: connections that have not proved themselves, at the same time."""
        self.refused = 0
        self._most_strangers = most_strangers
        self._listener = listener
        self._context = context
        self._make_link = make_link
        self._strangers: dict[str, dict[asyncio.Task[None], None]] = {}  # by source, oldest first
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
            source = address[0]
            # Whatever fails here was counted, and is that stranger's: the others must not notice.
            task = start_task(self._meet(sock), lambda error: None)
            self._strangers.setdefault(source, {})[task] = None
            task.add_done_callback(partial(self._forget, source))
            await asyncio.sleep(0)  # the task takes its socket over before anybody cancels it
            if sum(map(len, self._strangers.values())) > self._most_strangers:
                busiest = max(self._strangers.values(), key=len)
                oldest = next(iter(busiest))
                oldest.cancel()
                await asyncio.wait([oldest])

    async def close(self) -> None:
        """End all connections; `accept` must have been cancelled."""
        await asyncio.sleep(0)  # each task that was started takes its socket over
        tasks = [task for found in self._strangers.values() for task in found]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in list(self._links):
            link.abort()
            await link.closed

    def _forget(self, source: str, task: asyncio.Task[None]) -> None:
        del self._strangers[source][task]
        if not self._strangers[source]:
            del self._strangers[source]

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
                with contextlib.suppress(OSError):  # in the midst of the handshake, asyncio might wait for its end
                    sock.shutdown(socket.SHUT_RDWR)
