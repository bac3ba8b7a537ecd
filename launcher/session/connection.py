"""The connection to one supervisor, from connecting to its census.

paramiko's "non-blocking" calls can block (a re-key with a frozen peer blocked `send` for as long as the peer stayed
frozen), so asyncio's loop never touches a channel: each host has a reader thread, which also connects, and a writer
thread with a queue. All of them block without polling.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from launcher.clock import wall_clock
from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.session.allowed_messages import AllowedMessages, UnaskedMessage
from launcher.session.settings import Settings
from launcher.transports import bootstrap
from launcher.transports.archives import pack_node
from launcher.transports.base import KILLED, STDOUT, Channel, Transport, TransportError
from launcher.transports.bootstrap import SUPERVISOR, describe_no_input

MAX_WAITING_BEATS = 3
_MOST_SAMPLES = 100  # that nobody has taken

LOST = "lost"
READY = "ready"


@dataclass(frozen=True, slots=True)
class Event:
    """A message from a node (`kind` is its type), or a change of its connection (READY, LOST)."""

    index: int
    kind: str
    fields: Mapping[str, Any]
    at: float  # wall-clock seconds here


class OutputSink(Protocol):
    """Takes a node's output and files; the node's reader thread calls it, and output waits there for a slow disk."""

    def feed(self, local_rank: int | None, stream: int, data: bytes) -> None:
        """Take a piece of a rank's output, or of torchrun's if `local_rank` is None."""

    def keep_file(self, name: str, content: bytes) -> None:
        """Take a file that a rank left on the node."""


class Connection:
    """The connection to one supervisor, over one channel.

    Three threads use it. The reader thread connects, sends the first message, reads, calls `on_events` and `output`,
    and adds to `samples`; from then on only the writer thread writes. The public methods are for the event loop, and
    none of them waits for the node. The loop reads `is_ready`, `is_idle`, `is_over` and `heard_at` without a lock: each
    may be a moment old, and when `is_over` is seen, events that came before may still be in the loop's queue.

    READY comes at most once, before every message of the supervisor; the guardian writes to stderr, so its messages
    may come earlier. LOST comes exactly once after `start`, as the last event, however the connection ends: even
    after `close`, after a census, or if no thread could be started.

    The lock guarantees that after `recall` has returned False, the node never gets its first message; after True, it
    may have got it.
    """

    def __init__(
        self, index: int, host: Host, transport: Transport, settings: Settings, output: OutputSink,
        on_events: Callable[[Sequence[Event]], None], mark: str,
    ) -> None:  # fmt: skip
        """mark: of the processes that are started over it."""
        self.mark = mark
        self.index = index
        self.host = host
        self.noise = b""  # what came before the marker, and on stderr
        self.heard_at = time.monotonic()
        self.sleeps_along = False  # the node is on this machine
        self.is_ready = False
        self.is_idle = False  # the node waits for what becomes of the claim
        self.is_over = False
        self.samples: deque[Event] = deque(maxlen=_MOST_SAMPLES)  # SAMPLED wakes nobody
        self._transport = transport
        self._settings = settings
        self._output = output
        self._on_events = on_events
        self._nonce = secrets.token_hex(8)
        self._expected = AllowedMessages()
        self._decoder = messages.Decoder(accept=lambda header: self._expected.accept(header))
        self._rest = b""  # of a line of stderr
        self._channel: Channel | None = None
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._first_message = b""
        self._may_write = threading.Event()  # the node's code comes first
        self._lock = threading.Lock()
        self._has_orders = False
        self._is_busy = False
        self._is_closed = False
        self._opened_at: float | None = None
        self._failure: HostFailure | None = None

    @property
    def has_exited(self) -> bool:
        """Whether the node's side is known to have ended as it should."""
        return self.is_over and self._channel is not None and self._channel.exit_code() == 0

    def start(self, window: threading.Semaphore, first_message: bytes) -> None:
        """Connect in a separate thread, and let the node have its first message; READY follows, or LOST."""
        for header, _ in messages.Decoder(max_header_bytes=len(first_message)).feed(first_message):
            self._expected.ask(header)
        self._first_message = first_message
        try:
            start_thread(lambda: self._serve(window), f"read {self.host.name}", self._break)
        except LauncherError as error:
            self._lose(HostFailure(self.host.name, HostFailureKind.THREADS, error.message, error.fix))

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message; drop it if the connection has ended."""
        self.pass_on({"type": kind, **fields}, messages.encode(kind, payload, **fields))

    def pass_on(self, header: Mapping[str, Any], message: bytes) -> None:
        """Queue a message that is encoded already: several connections may share its bytes."""
        if self.is_over:
            return
        self._expected.ask(header)
        self._outbox.put(message)

    def beat(self) -> None:
        """Send a heartbeat, which renews the node's lease, unless several are queued."""
        if self._outbox.qsize() < MAX_WAITING_BEATS:
            self.send(messages.BEAT)

    def noise_text(self) -> str:
        """Return what the login shell, the supervisor and the transport printed besides messages."""
        text = self.noise.decode("utf-8", "replace").strip("\n")
        # Slurm reports separately why it ends a step, perhaps later than the supervisor's last message.
        late = [line for line in self._transport.own_messages(self.host) if line not in text]
        return "\n".join(filter(None, [text, *late]))

    def admit_standstill(self, gap_s: float) -> None:
        """Hang up because the node has heard nothing for `gap_s`, and so has ended the run."""
        text = f"this machine was suspended for {gap_s:.0f} s, so the hosts stopped the run"
        self.give_up(HostFailureKind.STANDSTILL, text)

    def excuse(self, stood_s: float, now: float) -> None:
        """Leave out of the node's silence the time for which this process was suspended."""
        # The reader may set it meanwhile: then a heartbeat is missed, and another one comes in time.
        self.heard_at = min(now, self.heard_at + stood_s)

    def check_time(self) -> None:
        """Hang up if the login shell prints no marker in time, or the node sends no heartbeat."""
        checked_at = time.monotonic()
        marker_timeout_s = max(bootstrap.MARKER_TIMEOUT_S, self._settings.timeouts.connect_timeout_s)
        if not self.is_ready and self._opened_at is not None and checked_at - self._opened_at > marker_timeout_s:
            failure = bootstrap.describe_silence(self.host, marker_timeout_s)
            self.give_up(failure.kind, failure.text, failure.fix)
        elif self.is_ready and not self._is_busy and checked_at - self.heard_at > self._settings.timeouts.silence_s:
            self.give_up(HostFailureKind.SILENT, f"no heartbeat for {self._settings.timeouts.silence_s:g} s")

    def give_up(self, kind: HostFailureKind, text: str, fix: str = "") -> None:
        """Hang up, and record the reason unless there is one already."""
        if self._failure is None:
            self._failure = HostFailure(self.host.name, kind, text, fix)
        self.close()

    def recall(self) -> bool:
        """Return whether the node may have its first message; if not, ensure that it never gets it."""
        with self._lock:
            self._is_closed = self._is_closed or not self._has_orders
        if not self._has_orders:
            self.close()
        return self._has_orders

    def close(self) -> None:
        """Hang up; the node itself then ends whatever still runs there."""
        self._is_closed = True
        self._outbox.put(None)
        self._may_write.set()
        if self._channel is not None:
            with contextlib.suppress(Exception):  # a connection that is broken already
                self._channel.close()

    # ---- in the reader thread -----------------------------------------------------------------------------------

    def _serve(self, window: threading.Semaphore) -> None:
        try:
            # Before anything is sent: if no thread can be started, nothing has begun.
            start_thread(self._write, f"write {self.host.name}", self._break_writing)
            with window:
                rest = self._open()
            self._post(READY, {})
            self._handle(rest)
            self._read_to_end()
            self._report_end()
        except TransportError as error:
            self._lose(error.failure)
        except UnaskedMessage as error:
            self._lose(
                HostFailure(self.host.name, HostFailureKind.PROTOCOL, f"it sent an unrequested message: {error}")
            )
        except messages.MalformedMessage as error:
            self._lose(HostFailure(self.host.name, HostFailureKind.PROTOCOL, f"it sent an invalid message: {error}"))
        except LauncherError as error:
            self._lose(HostFailure(self.host.name, HostFailureKind.CONFIGURATION, error.message, error.fix))
        finally:
            self.close()

    def _break(self, error: Exception) -> None:
        """Turn an unexpected exception into a HostFailure, so that it isn't lost."""
        self._lose(HostFailure(self.host.name, HostFailureKind.CONNECTION, f"the connection was lost: {error!r}"))

    def _open(self) -> bytes:
        """Connect and start the supervisor; return what came after its marker."""
        for python in self._settings.pythons:
            if self._is_closed:
                break
            self._opened_at = None  # of this attempt: connecting again may take a while
            archive = pack_node()
            command = bootstrap.loader_command(python, self._nonce, archive, enter=self.host.enter)
            self._channel = self._transport.open(self.host, command, self._settings.timeouts.connect_timeout_s)
            self._opened_at = time.monotonic()
            found = bootstrap.await_marker(
                self._channel, self._nonce, self.host.name, self._read_stderr, self._keep_noise
            )
            if found is not None and not self._is_closed:
                self._opened_at = None  # it is no longer the login shell that takes its time
                self._send_code(bootstrap.start_code(SUPERVISOR, archive, is_kept=found.is_kept))
                self.heard_at = time.monotonic()
                self.is_ready = True
                self._may_write.set()  # messages may be queued already
                return found.rest
            has_no_python = bootstrap.lacks_python(self.host, self._channel.exit_code(), self._all_noise())
            self._channel.close()
            if not has_no_python:
                break
        raise TransportError(self._failure or self._no_marker())

    def _send_code(self, code: bytes) -> None:
        self._refuse_closed()
        self._write_at_start(code)
        with self._lock:
            self._refuse_closed()
            self._has_orders = True
        self._write_at_start(self._first_message)

    def _write_at_start(self, data: bytes) -> None:
        assert self._channel is not None  # it was opened just now
        try:
            self._channel.write(data)
        except OSError:
            if not self.host.enter:  # otherwise the exit code tells more
                raise

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise TransportError(self._failure or self._no_marker())

    def _no_marker(self) -> HostFailure:
        if self._is_closed and not self._has_orders:
            return HostFailure(self.host.name, HostFailureKind.CLOSED, "launch stopped before it was reached")
        code = self._channel.exit_code() if self._channel is not None else None
        return bootstrap.describe_end(self.host, code, self._settings.pythons, self._all_noise())

    def _read_to_end(self) -> None:
        assert self._channel is not None  # it answered
        while True:
            stream, data = self._channel.read()
            if not stream:
                return
            if stream == STDOUT:
                self._handle(data)
            else:
                self._read_stderr(data)

    def _handle(self, data: bytes) -> None:
        self._is_busy = True  # a slow local disk must not count as the node's silence
        events: list[Event] = []
        for header, payload in self._decoder.feed(data):
            if header["type"] == messages.OUTPUT:
                if events:  # whoever has read what a rank printed may rely on its start being known
                    self._on_events(events)
                    events = []
                self._output.feed(header["local_rank"], header["stream"], payload)
            elif header["type"] == messages.FILE:  # 32 MiB of a node would hold up the loop
                self._on_events(events)  # the census, above all, must not wait for a local disk
                events = []
                self._output.keep_file(header["name"], payload)
            elif header["type"] in (messages.STACK, messages.WANTED):
                events.append(Event(self.index, header["type"], {**header, "content": payload}, wall_clock()))
            elif header["type"] == messages.SAMPLED:
                self.samples.append(Event(self.index, header["type"], header, wall_clock()))
            elif header["type"] != messages.BEAT:
                self.is_idle = header["type"] == messages.IDLE
                self.sleeps_along = self.sleeps_along or header.get("sleeps_along") is True
                events.append(Event(self.index, header["type"], header, wall_clock()))
        if events:
            self._on_events(events)
        self.heard_at = time.monotonic()
        self._is_busy = False

    def _read_stderr(self, data: bytes) -> None:
        """Keep noise; take the messages of a dead supervisor's guardian, whose lines begin with the nonce."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        prefix = self._nonce.encode() + b" "
        noise = []
        for line in lines:
            if line.startswith(prefix):
                guardian = messages.Decoder(accept=self._expected.accept_from_guardian)
                for report, _ in guardian.feed(line[len(prefix) :] + b"\n"):
                    self.heard_at = time.monotonic()  # noise is no heartbeat
                    if report["type"] != messages.BEAT:
                        self._post(report["type"], report)
            elif line:
                noise.append(line + b"\n")
        if len(self._rest) > bootstrap.NOISE_BYTES:
            noise.append(self._rest)
            self._rest = b""
        self._keep_noise(b"".join(noise))

    def _keep_noise(self, data: bytes) -> None:
        self.noise = (self.noise + data)[-bootstrap.NOISE_BYTES :]

    def _all_noise(self) -> bytes:
        return self.noise + self._rest

    def _last_line(self) -> str:
        return bootstrap.last_line(self._all_noise())

    def _report_end(self) -> None:
        """Post LOST with the reason why the channel has ended; after a census it no longer counts as a failure."""
        code = self._channel.exit_code() if self._channel is not None else None
        if self._failure is not None:
            self._lose(self._failure)
        elif code is None:
            self._lose(HostFailure(self.host.name, HostFailureKind.CONNECTION, "the connection was lost"))
        elif messages.NO_WORD in self._last_line():  # it ended before this side noticed the gap
            silence = self._last_line().rpartition(messages.NO_WORD)[2]
            text = f"this machine was suspended for over{silence}, so the hosts stopped the run"
            self._lose(HostFailure(self.host.name, HostFailureKind.STANDSTILL, text))
        elif code == 0 and self.host.enter:
            self._lose(describe_no_input(self.host.enter, self.host.name))
        else:
            ended = ": ".join(filter(None, [f"its helper exited with code {code}", self._last_line()]))
            killed = f"{self.host.enter or 'its parent process'} was killed"
            text = killed if code >= KILLED else ended
            self._lose(HostFailure(self.host.name, HostFailureKind.SUPERVISOR, text))

    def _lose(self, failure: HostFailure) -> None:
        with self._lock:
            self.is_over = True
            post = self._on_events
        post([Event(self.index, LOST, {"failure": failure}, wall_clock())])

    def _post(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._on_events([Event(self.index, kind, fields, wall_clock())])

    # ---- in the writer thread -----------------------------------------------------------------------------------

    def _write(self) -> None:
        self._may_write.wait()
        with contextlib.suppress(OSError):  # the reader meets the end of the connection and reports it
            while self.is_ready and (message := self._outbox.get()) is not None:
                assert self._channel is not None  # the node has answered
                self._channel.write(message)

    def _break_writing(self, error: Exception) -> None:
        """Hang up: nothing reaches the node any more, not even a heartbeat."""
        self.give_up(HostFailureKind.CONNECTION, f"the connection was lost: {error!r}")
