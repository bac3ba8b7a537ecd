"""Run this package's own code on a host, and copy its output to this process's streams."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from launcher.concurrency import start_thread
from launcher.controller import orders
from launcher.controller.orders import Action, Control, Order
from launcher.errors import HostFailure, HostFailureKind
from launcher.escapes import clean
from launcher.hosts.host import Host
from launcher.hosts.ranges import shown
from launcher.node import messages
from launcher.output.lines import STDERR, STDOUT
from launcher.output.output_streams import OutputStreams
from launcher.output.terminal import write_some
from launcher.transports.archives import pack_launcher
from launcher.transports.base import Transport, TransportError
from launcher.transports.bootstrap import CODE_S, LAUNCHER, MARKER_TIMEOUT_S, describe_no_input, hanging_up, open_python

MOST_MISSED = 3  # heartbeats of this side for which nothing comes, while something is awaited
_OLDEST = (3, 10)
_ANSWER_S = 30.0  # for an answer that is read whole
_MOST_LINE_BYTES = 1 << 16
_MOST_LAST_LINE_BYTES = 1 << 12
_MOST_OUTPUT_BYTES = 64_000_000


class RemoteLauncher:
    """A process of this package on a host. Its stdin takes messages; its exit code is that of what was asked."""

    def __init__(
        self, transport: Transport, host: Host, pythons: Sequence[str], timeout_s: float,
    ) -> None:  # fmt: skip
        """Connect and send the code, unless the host has it; raise TransportError."""
        self.host = host
        python = open_python(transport, host, pythons, timeout_s, pack_launcher())
        self.channel = python.channel
        self.exit_code: int | None = None  # once all output was read; None: it has left its streams, and continues
        self.is_queued = False  # it continues in the queue
        self.was_refused = False  # what it was asked to run never started
        self.is_unknown = False  # the run that it was asked about
        # Not the nonce: any rank there sees a command line, and what it prints comes with what this process says.
        self._mark = f"~{secrets.token_hex(8)} ".encode()
        self._cuts = {fd: LineCut(self._mark) for fd in (STDOUT, STDERR)}
        self._unread = python.rest
        self._silence_s = max(MARKER_TIMEOUT_S, timeout_s)
        self._period_s = min(orders.BEAT_S, self._silence_s / messages.BEATS_PER_SILENCE)
        self._is_closed = threading.Event()
        self._is_reading = False
        # Heartbeats, while something is awaited; this package may take a while to get there, and to be imported.
        self._missed = -round((MARKER_TIMEOUT_S if python.is_kept else CODE_S) / self._period_s)
        self._is_silent = False
        if python.version < _OLDEST:
            self.close()
            needed, there = (".".join(map(str, each)) for each in (_OLDEST, python.version))
            text = f"its Python is {there}, and the controller of a run needs {needed} or newer"
            fix = "name a newer one with --python PATH, another host with --controller HOST, or --controller here"
            raise TransportError(HostFailure(self.host.name, HostFailureKind.NO_PYTHON, text, fix))
        try:
            python.start(LAUNCHER)
        except BaseException:
            self.close()
            raise

    def ask(self, action: Action, streams: OutputStreams) -> None:
        """Send what to do; streams: of this process, where the answer is shown."""
        silence_s = self._silence_s if isinstance(action, Control) else orders.SILENCE_S
        order = Order(action, replace(streams, is_one_file=False), self._mark, silence_s)
        self._send(orders.encode(order))
        start_thread(self._beat, f"beat {self.host.name}", lambda error: None)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to what was asked for."""
        self._send(messages.encode(kind, **fields))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # whoever reads its output learns that it has gone
            self.channel.write(data)

    def _read(self) -> tuple[int, bytes]:
        if self._unread:
            data, self._unread = self._unread, b""
            return STDOUT, data
        self._missed, self._is_reading = min(self._missed, 0), True  # what was missed while nobody read is none
        try:
            return self.channel.read()
        finally:
            self._is_reading = False

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the output that was not read yet, as pairs of stream and bytes.

        Raise TransportError if it ends before its last line, or sends no heartbeats.
        """
        while not all(cut.word for cut in self._cuts.values()):
            stream, data = self._read()
            if not stream:
                raise TransportError(self._describe_end())
            data = self._cuts[stream].take(data)
            if self._cuts[stream].has_mark:  # it runs: from now on it is as late as any
                self._missed = max(self._missed, 0)
            if self._cuts[stream].size_bytes > _MOST_LAST_LINE_BYTES:
                text = f"its last line is longer than {_MOST_LAST_LINE_BYTES} bytes"
                raise TransportError(HostFailure(self.host.name, HostFailureKind.PROTOCOL, text))
            if data:
                yield stream, data
        word = self._cuts[STDERR].word
        self.is_queued = word == orders.LEFT_QUEUED
        if word not in (orders.LEFT, orders.LEFT_QUEUED):
            code, _, ending = word.partition(" ")
            if not re.fullmatch(r"[0-9]{1,3}", code):
                text = f"its launch ended with {shown(code)}, which is no exit code"
                raise TransportError(HostFailure(self.host.name, HostFailureKind.PROTOCOL, text))
            self.exit_code = int(code)
            self.was_refused, self.is_unknown = ending == orders.REFUSED, ending == orders.UNKNOWN

    def copy_output(
        self, on_closed: Callable[[OSError], object] | None = None, *, is_of_a_run: bool = True
    ) -> int | None:
        """Copy all output; return the exit code, or None if the process has left its streams and continues.

        Raise TransportError if it was killed, or the connection lost, and OSError if a stream of this process was
        closed. on_closed: called with that error instead, and the rest for this stream is dropped. is_of_a_run: it was
        made for this terminal by the controller that the user chose; what else a host says is cleaned.
        """
        closed: set[int] = set()
        for stream, data in self.pieces() if is_of_a_run else _clean_lines(self.pieces(), (STDOUT, STDERR)):
            error = _try_to_write(stream, data) if stream not in closed else None
            if error is not None:
                if on_closed is None:
                    raise error
                closed.add(stream)
                on_closed(error)
        return self.exit_code

    def read_output(self) -> bytes:
        """Return all that it writes to stdout, within _ANSWER_S; errors are copied to stderr."""
        output, size_bytes = list[bytes](), 0
        with self._limited(_ANSWER_S):
            for stream, data in _clean_lines(self.pieces(), (STDERR,)):
                if stream == STDERR:
                    _try_to_write(stream, data)
                else:
                    output.append(data)
                    size_bytes += len(data)
                if size_bytes > _MOST_OUTPUT_BYTES:
                    text = f"it sent more than {_MOST_OUTPUT_BYTES // 1_000_000} MB"
                    raise TransportError(HostFailure(self.host.name, HostFailureKind.PROTOCOL, text))
        return b"".join(output)

    def _beat(self) -> None:
        """Send something now and then: if it isn't acknowledged, or doesn't come, the other side is gone.

        Hang up if none of the other side's heartbeats comes: their number counts, since this process may be suspended.
        """
        while not self._is_closed.wait(self._period_s):
            self.send(messages.BEAT)
            self._missed += 1
            if self._is_reading and self._missed > MOST_MISSED:
                self._is_silent = True
                self.close()

    @contextlib.contextmanager
    def _limited(self, timeout_s: float) -> Iterator[None]:
        """Hang up, and raise TransportError, if the block takes longer."""
        with hanging_up(self.channel, timeout_s) as has_hung_up:
            try:
                yield
            except TransportError:
                if not has_hung_up.is_set():
                    raise
                raise TransportError(self._describe_silence(f"no answer within {timeout_s:g} s")) from None

    def _describe_silence(self, text: str) -> HostFailure:
        fix = "log in there, and see whether it is overloaded or a file system doesn't respond"
        return HostFailure(self.host.name, HostFailureKind.SILENT, text, fix)

    def _describe_end(self) -> HostFailure:
        if self._is_silent:
            return self._describe_silence("launch doesn't respond there any more")
        code = self.channel.exit_code()
        if code == 0 and self.host.enter:
            return describe_no_input(self.host.enter, self.host.name)
        is_lost = code in (None, orders.HUNG_UP)
        text = "the connection was lost" if is_lost else f"launch was killed there (exit code {code})"
        return HostFailure(self.host.name, HostFailureKind.CONNECTION, text)

    def close(self) -> None:
        """Hang up."""
        self._is_closed.set()
        with contextlib.suppress(Exception):  # a connection that is broken already
            self.channel.close()


class LineCut:
    """Takes the last line out of a stream, which begins with a mark, and may come in pieces; `word` is its rest.

    A mark with nothing behind it is a heartbeat, which may be anywhere.
    """

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = b""
        self.word = ""
        self.has_mark = False  # whether there was one

    @property
    def size_bytes(self) -> int:
        """How long the last line is so far."""
        return len(self._held) + len(self.word)

    def take(self, data: bytes) -> bytes:
        """Return what is certainly before the mark."""
        data = self._held + data
        self.has_mark |= self._mark in data
        data = data.replace(self._mark + b"\n", b"")
        before, mark, rest = data.partition(self._mark)
        if mark:
            line, newline, _ = rest.partition(b"\n")
            self._held = b"" if newline else mark + rest
            self.word = line.decode("ascii", "replace") if newline else ""
            return before
        sizes = range(min(len(self._mark) - 1, len(data)), -1, -1)
        end = next(len(data) - size for size in sizes if self._mark.startswith(data[len(data) - size :]))
        self._held = data[end:]
        return data[:end]


def _clean_lines(pieces: Iterator[tuple[int, bytes]], streams: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the same output, that of these streams in whole lines that are safe for a terminal."""
    held = dict.fromkeys(streams, b"")
    error = None
    try:
        for stream, data in pieces:
            if stream not in held:
                yield stream, data
                continue
            lines, newline, held[stream] = (held[stream] + data).rpartition(b"\n")
            if len(held[stream]) > _MOST_LINE_BYTES:
                lines, newline, held[stream] = lines + newline, held[stream], b""
            yield stream, clean(lines + newline)
    except TransportError as raised:
        error = raised
    yield from ((stream, clean(rest)) for stream, rest in held.items() if rest)
    if error is not None:
        raise error


def _try_to_write(fd: int, data: bytes) -> OSError | None:
    """Write all of it; return the error if the stream was closed."""
    try:
        view = memoryview(data)
        while view:
            view = view[write_some(fd, view) :]
    except OSError as error:
        return error
    return None
