"""The connection of one agent to this controller, and the channels through it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from launcher.errors import HostFailure, HostFailureKind
from launcher.node import messages
from launcher.transports.agents.channel import AgentChannel
from launcher.transports.base import STDERR, STDOUT, TransportError

MAX_HEADER_BYTES = 4 << 10  # of a message from an agent, above all its HELLO
MAX_OUTPUT_BYTES = 64 << 10  # in one message
_MOST_BYTES = 4 * messages.AGENT_WINDOW_BYTES  # of a channel's output; an agent that works stays within one
_READ_S = 0.1  # for what waits in a socket
_PIECE_BYTES = 64 << 10  # of input in one message, so that heartbeats and other channels come between
_STREAMS = {messages.OUT: STDOUT, messages.ERR: STDERR}

Header = Mapping[str, Any]


class AgentLink(asyncio.Protocol):
    """One TLS connection: first a stranger's, then, once it is admitted, that of a host's agent.

    The event loop of the hub calls what asyncio calls, and `send`, `admit`, `check_silence` and `drop`. Other threads
    open channels, which call this link; they only wait while a channel's input fills its window, and the loop waits for
    none of them. `_changed` guards the channels: after the loss of the connection each of them has ended, none is
    added, and no thread waits.
    """

    def __init__(self, on_hello: Callable[[AgentLink, Header], bool], on_lost: Callable[[AgentLink], object]) -> None:
        """on_hello: returns whether the connection is an agent's; on_lost: called once, unless it was a stranger's."""
        self.host: str | None = None  # None for a stranger
        self.index = -1
        self._on_hello = on_hello
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.is_proven: asyncio.Future[bool] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = self._loop.time()
        self._decoder = messages.Decoder(MAX_HEADER_BYTES, _accept)
        self._transport: asyncio.Transport | None = None
        self._failure: HostFailure | None = None
        self._changed = threading.Condition()
        self._is_lost = False
        self._channels: dict[int, AgentChannel] = {}
        self._untaken_bytes: dict[int, int] = {}  # input of each channel that wasn't left, not yet taken by its process

    # ---- what asyncio calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the HELLO."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Serve the messages that are complete now."""
        self._heard_at = self._loop.time()
        try:
            for header, payload in self._decoder.feed(data):
                if not self._is_lost:
                    self._take(header, payload)
        except (messages.MalformedMessage, KeyError, TypeError) as error:
            self.drop(HostFailureKind.PROTOCOL, f"its agent sent an invalid message: {error!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End all channels."""
        self.closed.set_result(None)
        self._lose()

    # ---- in the hub's event loop ----------------------------------------------------------------------------------

    def admit(self, host: str, index: int, silence_s: float) -> None:
        """Take the connection for that of a host's agent, and drop it when it is silent for `silence_s`."""
        self.host, self.index = host, index
        self.check_silence(silence_s)

    def check_silence(self, silence_s: float, *, is_over: bool = False) -> None:
        """Drop the connection if nothing has come for `silence_s`, otherwise look again when that may be so.

        is_over: that has been so, and what waited in the socket has been read since: this process may have been
        suspended.
        """
        if self._is_lost:
            return
        due_at = self._heard_at + silence_s
        if self._loop.time() < due_at:
            self._loop.call_at(due_at, self.check_silence, silence_s)
        elif is_over:
            self.drop(HostFailureKind.SILENT, f"no heartbeat for {silence_s:g} s")
        else:
            self._loop.call_later(_READ_S, partial(self.check_silence, silence_s, is_over=True))

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a message; drop it if the connection is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(messages.encode(kind, payload, **fields))

    def send_last(self, kind: str) -> None:
        """Send a message, and close the connection behind it."""
        self.send(kind)
        if self._transport is not None:
            self._transport.close()

    def drop(self, kind: HostFailureKind, text: str) -> None:
        """End the connection at once, and its channels with this reason."""
        if self._failure is None and self.host is not None:
            self._failure = HostFailure(self.host, kind, text)
        self.abort()

    def abort(self) -> None:
        """End the connection at once, and its channels because it is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def _lose(self) -> None:
        with self._changed:
            was_lost, self._is_lost = self._is_lost, True
        if self.host is not None and not was_lost:
            self._on_lost(self)  # first: whoever sees the end of a channel must not find this link any more
        with self._changed:
            failure = self._failure or HostFailure(
                self.host or "", HostFailureKind.CONNECTION, "the connection to its agent was lost"
            )
            for channel in self._channels.values():
                channel.end(None, failure)
            self._channels.clear()
            self._untaken_bytes.clear()
            self._changed.notify_all()
        if not self.is_proven.done():
            self.is_proven.set_result(False)

    def _take(self, header: Header, payload: bytes) -> None:
        kind = header["type"]
        if not self.is_proven.done():
            self.is_proven.set_result(kind == messages.HELLO and self._on_hello(self, header))
        elif kind == messages.BEAT or self.host is None:
            pass
        elif kind in _STREAMS:
            channel = self._channels.get(header["channel"])
            if channel is not None:
                channel.deliver(_STREAMS[kind], payload)
        elif kind == messages.TOOK:
            self._note_taken(header["channel"], header["bytes"])
        elif kind == messages.EXIT:
            self._end_channel(header["channel"], header["code"])

    def _note_taken(self, number: int, size_bytes: int) -> None:
        with self._changed:
            if number in self._untaken_bytes:
                self._untaken_bytes[number] = max(0, self._untaken_bytes[number] - size_bytes)
                self._changed.notify_all()

    def _end_channel(self, number: int, code: int) -> None:
        with self._changed:
            channel = self._channels.pop(number, None)
            self._untaken_bytes.pop(number, None)
            self._changed.notify_all()
        if channel is not None:
            channel.end(code)

    # ---- in any thread --------------------------------------------------------------------------------------------

    def open_channel(self, number: int, command: str) -> AgentChannel:
        """Start a process; number: one that no other channel of the run has. Raise TransportError if it is lost."""
        assert self.host is not None  # it was admitted
        with self._changed:
            if self._is_lost:
                text = "the connection to its agent was lost"
                raise TransportError(self._failure or HostFailure(self.host, HostFailureKind.CONNECTION, text))
            channel = AgentChannel(self.host, number, self, _MOST_BYTES)
            self._channels[number] = channel
            self._untaken_bytes[number] = 0
            self._post(messages.OPEN, channel=number, command=command)
        return channel

    def acknowledge(self, channel: AgentChannel, size_bytes: int) -> None:
        """Let the agent send this much more output."""
        self._post(messages.TOOK, channel=channel.number, bytes=size_bytes)

    def send_data(self, channel: AgentChannel, data: bytes) -> None:
        """Send input, and wait while the process has not taken enough of it; raise OSError if the agent is lost.

        The rest is dropped when the process exits or the channel is closed.
        """
        number, rest = channel.number, memoryview(data)
        while rest:
            with self._changed:
                self._changed.wait_for(lambda: self._untaken_bytes.get(number, 0) < messages.AGENT_WINDOW_BYTES)
                if self._is_lost:
                    raise BrokenPipeError("the connection to its agent was lost")
                if number not in self._untaken_bytes:
                    return
                piece = rest[: min(_PIECE_BYTES, messages.AGENT_WINDOW_BYTES - self._untaken_bytes[number])]
                self._untaken_bytes[number] += len(piece)
                self._post(messages.DATA, bytes(piece), channel=number)
            rest = rest[len(piece) :]

    def leave(self, channel: AgentChannel) -> None:
        """Make the agent close the process's pipes, unless the process has exited; wake who waits to write."""
        with self._changed:
            if self._untaken_bytes.pop(channel.number, None) is not None:
                self._post(messages.SHUT, channel=channel.number)
                self._changed.notify_all()

    def _post(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        def send() -> None:
            self.send(kind, payload, **fields)

        with contextlib.suppress(RuntimeError):  # the loop is closed, and the channels have ended
            self._loop.call_soon_threadsafe(send)


def _accept(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header from an agent, or a stranger, if its fields are what they should be."""
    size = header.get("size", 0)
    if size > (MAX_OUTPUT_BYTES if header["type"] in _STREAMS else 0):
        raise messages.MalformedMessage(f"a payload of {size} bytes")
    for name in ("channel", "bytes", "code", "index"):
        value = header.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise messages.MalformedMessage(f"invalid {name}: {value!r}")
    return header
