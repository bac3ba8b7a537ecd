"""One conversation per node, over whatever transport: threads move the bytes, asyncio decides.

paramiko's "non-blocking" calls can block (a re-key with a frozen peer blocked `send` for as long as the peer stayed
frozen), so the loop never touches a channel: each host has a reader thread, which also connects, and a writer
thread with a queue. All of them block without polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from launcher import shipping
from launcher.errors import HostFailure, LauncherError
from launcher.hosts import Host
from launcher.node import messages
from launcher.replies import check_reply
from launcher.transports.base import KILLED, STDOUT, Channel, Transport, TransportError

CONNECT_WINDOW = 64  # one GIL serves all key exchanges, and sshd's banner time-out is 15 s
MARKER_TIMEOUT_S = 10.0
BEATS_PER_SILENCE = 2.5  # two may be lost
NOISE_BYTES = 64 << 10
_EXIT_NOT_FOUND = 127

OnOutput = Callable[[int, int | None, int, bytes], None]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a node said, or that became of it (`kind` is a message's, or LOST)."""

    index: int
    kind: str
    fields: Mapping[str, Any]
    at: float  # wall-clock seconds here


LOST = "lost"
READY = "ready"
INTERRUPT = "interrupt"


class Conversation:
    """What is said with one supervisor, from connecting to its census."""

    def __init__(
        self, index: int, host: Host, transport: Transport, pythons: Sequence[str], timeout_s: float,
        on_event: Callable[[Event], None], on_output: OnOutput,
    ) -> None:  # fmt: skip
        self.index = index
        self.host = host
        self.noise = b""  # what came before the marker, and on stderr
        self.heard_at = time.monotonic()
        self.is_ready = False
        self.is_over = False
        self._transport = transport
        self._pythons = list(pythons)
        self._timeout_s = timeout_s
        self._on_event = on_event  # called in this conversation's thread
        self._on_output = on_output
        self._nonce = secrets.token_hex(8)
        self._decoder = messages.Decoder()
        self._channel: Channel | None = None
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_busy = False
        self._opened_at: float | None = None
        self._failure: HostFailure | None = None

    def start(self, window: threading.Semaphore, first_message: bytes) -> None:
        """Connect in a thread of its own; READY or LOST follows."""
        target = self._converse
        threading.Thread(
            target=target, args=(window, first_message), name=f"read {self.host.name}", daemon=True
        ).start()

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message; one for a node that is gone is dropped."""
        if self.is_over:
            return
        self._outbox.put(messages.encode(kind, payload, **fields))
        self._start_writer()

    def beat(self) -> None:
        """Renew the node's lease, unless beats pile up already."""
        if self._outbox.qsize() < BEATS_PER_SILENCE:
            self.send(messages.BEAT)

    def noise_text(self) -> str:
        """Return what the login shell and the supervisor said besides messages."""
        lines = self.noise.decode("utf-8", "replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith(self._nonce))

    def check_time(self, silence_s: float) -> None:
        """Hang up where the login shell gives no marker, or the node no sign of life."""
        now = time.monotonic()
        marker_timeout_s = max(MARKER_TIMEOUT_S, self._timeout_s)
        if not self.is_ready and self._opened_at is not None and now - self._opened_at > marker_timeout_s:
            self.give_up(
                "shell",
                f"its login shell waits for input (no answer in {marker_timeout_s:g} s)",
                "an rc file may ask or wait in interactive shells only; for a slow one raise --connect-timeout",
            )
        elif self.is_ready and not self._is_busy and now - self.heard_at > silence_s:
            self.give_up("silent", f"no sign of life for {silence_s:g} s")

    def give_up(self, kind: str, text: str, hint: str = "") -> None:
        """Hang up, and make this the reason."""
        if self._failure is None:
            self._failure = HostFailure(self.host.name, kind, text, hint)
        self.close()

    def close(self) -> None:
        """Hang up; the node ends by itself whatever still runs there."""
        self._outbox.put(None)
        if self._channel is not None:
            with contextlib.suppress(Exception):  # a connection that is broken already
                self._channel.close()

    # ---- in the reader thread -----------------------------------------------------------------------------------

    def _converse(self, window: threading.Semaphore, first_message: bytes) -> None:
        try:
            with window:
                rest = self._open(first_message)
            self._post(READY, {})
            self._handle(rest)
            self._read_to_end()
            self._report_end()
        except TransportError as error:
            self._lose(error.failure)
        except messages.MalformedMessage as error:
            self._lose(HostFailure(self.host.name, "protocol", f"sent what is no message: {error}"))
        except LauncherError as error:
            self._lose(HostFailure(self.host.name, "configuration", error.message, error.hint))
        except Exception as error:  # noqa: BLE001 - a host's failure becomes a value, whatever it is
            self._lose(HostFailure(self.host.name, "connection", f"lost the connection: {error!r}"))
        finally:
            self.close()

    def _open(self, first_message: bytes) -> bytes:
        """Connect and start the node's side; return what came after its marker."""
        for python in self._pythons:
            command = shipping.loader_command(python, self._nonce)
            self._channel = self._transport.open(self.host, command, self._timeout_s)
            self._opened_at = time.monotonic()
            found = self._await_marker()
            if found is not None:
                magic, rest = found
                self._channel.write(shipping.node_code(self._nonce, magic) + first_message)
                self.heard_at = time.monotonic()
                self.is_ready = True
                self._start_writer()  # somebody may have had something to say before
                return rest
            if self._channel.exit_code() != _EXIT_NOT_FOUND:
                break
        raise TransportError(self._failure or self._no_marker())

    def _await_marker(self) -> tuple[str, bytes] | None:
        assert self._channel is not None
        marker = f"{shipping.MARKER} {self._nonce} ".encode()
        text = b""
        while True:
            stream, data = self._channel.read()
            if not stream:
                return None
            if stream != STDOUT:
                self._keep_noise(data)
                continue
            text += data
            start = text.find(marker)
            end = text.find(b"\n", start)
            if start >= 0 and end >= 0:
                self._keep_noise(text[:start])
                return text[start + len(marker) : end].decode("ascii", "replace"), text[end + 1 :]
            if len(text) > NOISE_BYTES:
                self._keep_noise(text)
                raise TransportError(
                    HostFailure(self.host.name, "shell", "its login shell prints without end", "look at its rc files")
                )

    def _no_marker(self) -> HostFailure:
        assert self._channel is not None
        code = self._channel.exit_code()
        said = self.noise_text().strip().splitlines()
        if code == _EXIT_NOT_FOUND:
            return HostFailure(
                self.host.name,
                "no python",
                f"no {' or '.join(self._pythons)} there",
                "name one that is with --python PATH",
            )
        text = "its login shell ended" if code is not None else "the connection was lost at once"
        text += f" (exit code {code})" if code is not None else ""
        return HostFailure(self.host.name, "shell", text + (f": {said[-1][:200]}" if said else ""))

    def _read_to_end(self) -> None:
        assert self._channel is not None
        while True:
            stream, data = self._channel.read()
            if not stream:
                return
            self.heard_at = time.monotonic()
            if stream == STDOUT:
                self._handle(data)
            else:
                self._keep_noise(data)

    def _handle(self, data: bytes) -> None:
        self._is_busy = True  # a disk of ours that is slow is not the node's silence
        for header, payload in self._decoder.feed(data):
            check_reply(header)
            if header["type"] == messages.OUTPUT:
                self._on_output(self.index, header["local_rank"], header["stream"], payload)
            elif header["type"] != messages.BEAT:
                self._post(header["type"], header)
        self.heard_at = time.monotonic()
        self._is_busy = False

    def _keep_noise(self, data: bytes) -> None:
        self.noise = (self.noise + data)[-NOISE_BYTES:]

    def _report_end(self) -> None:
        """The channel is at its end: say why, or hand on what the guardian of a dead supervisor says."""
        self.is_over = True
        report = self._guardian_report()
        if report is not None:
            self._post(messages.CENSUS, report)
        elif self._failure is not None:
            self._lose(self._failure)
        else:
            code = self._channel.exit_code() if self._channel is not None else None
            if code is None:
                self._lose(HostFailure(self.host.name, "connection", "the connection was lost"))
            else:
                text = "its guardian was killed" if code >= KILLED else f"its guardian ended (exit code {code})"
                self._lose(HostFailure(self.host.name, "supervisor", text))

    def _guardian_report(self) -> dict[str, Any] | None:
        for line in self.noise.split(b"\n"):
            if line.startswith(self._nonce.encode() + b" "):
                ((report, _),) = messages.Decoder().feed(line.split(b" ", 1)[1] + b"\n")
                check_reply(report)
                return report
        return None

    def _lose(self, failure: HostFailure) -> None:
        self.is_over = True
        self._post(LOST, {"failure": failure})

    def _post(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._on_event(Event(self.index, kind, fields, time.time()))

    # ---- in the writer thread -----------------------------------------------------------------------------------

    def _start_writer(self) -> None:
        """Start the writer with the first message; a short command never needs one."""
        with self._lock:
            if self._writer is None and self.is_ready and not self._outbox.empty():
                self._writer = threading.Thread(target=self._write, name=f"write {self.host.name}", daemon=True)
                self._writer.start()

    def _write(self) -> None:
        assert self._channel is not None
        with contextlib.suppress(Exception):  # the reader meets the end of the connection and reports it
            while (data := self._outbox.get()) is not None:
                self._channel.write(data)


class Fleet:
    """The conversations with all hosts of a job."""

    def __init__(
        self, hosts: Sequence[Host], transports: Sequence[Transport], *, pythons: Sequence[str],
        connect_timeout_s: float, silence_s: float, on_output: OnOutput,
    ) -> None:  # fmt: skip
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.silence_s = silence_s
        self._window = threading.Semaphore(CONNECT_WINDOW)
        self._loop = asyncio.get_running_loop()
        self.conversations = [
            Conversation(index, host, transport, pythons, connect_timeout_s, self.post, on_output)
            for index, (host, transport) in enumerate(zip(hosts, transports, strict=True))
        ]
        self._keeper: asyncio.Task[None] | None = None

    def start(self, first_messages: Sequence[bytes]) -> None:
        """Connect to all hosts at once; each posts READY or LOST."""
        for conversation, first_message in zip(self.conversations, first_messages, strict=True):
            self.start_one(conversation, first_message)
        self._keeper = asyncio.create_task(self._keep_leases())

    def start_one(self, conversation: Conversation, first_message: bytes) -> None:
        """Connect to one host."""
        conversation.start(self._window, first_message)

    def interrupt(self, number: int) -> None:
        """Queue a signal that we got, in line with what the nodes say."""
        self.events.put_nowait(Event(-1, INTERRUPT, {"signal": number}, time.time()))

    def broadcast(self, kind: str, **fields: Any) -> None:
        """Send one message to every node that is there."""
        for conversation in self.conversations:
            conversation.send(kind, **fields)

    def close(self) -> None:
        """Hang up everywhere."""
        if self._keeper is not None:
            self._keeper.cancel()
        for conversation in self.conversations:
            conversation.close()

    def post(self, event: Event) -> None:
        """Queue an event, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    async def _keep_leases(self) -> None:
        beat_at = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self.silence_s / 10))
            is_time_to_beat = time.monotonic() >= beat_at
            if is_time_to_beat:
                beat_at = time.monotonic() + self.silence_s / BEATS_PER_SILENCE
            for conversation in self.conversations:
                if not conversation.is_over:
                    conversation.check_time(self.silence_s)
                    if is_time_to_beat and conversation.is_ready:
                        conversation.beat()
