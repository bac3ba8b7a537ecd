"""One srun, the relays that it runs on the nodes of a step, and the channels through them.

Three threads block on srun's streams: one reads stdout, one reads stderr, one writes stdin.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from queue import SimpleQueue

from launcher.concurrency import start_thread, start_timer
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.transports import bootstrap
from launcher.transports.base import READ_BYTES, STDERR, TransportError
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import (
    BLOCK_BYTES,
    KEPT_BLOCKS,
    MAX_LINE_BYTES,
    DataLines,
    Event,
    Exit,
    Here,
    LineDecoder,
    Output,
    hang_line,
    open_line,
    shut_line,
    took_line,
)
from launcher.transports.relayed.relays import Relay, Relays, as_noise
from launcher.transports.relayed.srun_output import SrunWords, says_something

# srun writes a flood in pieces of 1 KB, and each would wake us: they gather for a moment.
_FEW_BYTES = 512
_GATHER_S = 0.002
_PIPE_BYTES = 1 << 20
_MOST_BYTES = 4 << 20  # four windows of a relay
_SETTLE_S = 0.2  # after the end of a task: that Slurm has cancelled the step may be said a moment later
_END_S = 2.0  # for srun, once nobody is left to talk to
_KILL_S = 1.0


class Step:
    """One srun on some nodes of an allocation."""

    def __init__(
        self, hosts: Sequence[str], options: Sequence[str], pythons: Sequence[str], environ: Mapping[str, str],
        lost: Mapping[str, Here],
    ) -> None:  # fmt: skip
        """Start srun, or raise OSError; `lost`: relays of an earlier step, which may not know that its srun is gone."""
        self._hosts = tuple(hosts)
        self._relays = Relays(hosts, _MOST_BYTES)
        self._missing = len(hosts)
        self._lost = lost
        self._nonce = secrets.token_hex(4)
        self._words = SrunWords(hosts, pythons)
        self._orders: SimpleQueue[bytes | tuple[int, bytes] | None] = SimpleQueue()
        self._is_ending = False
        self._has_ended = threading.Event()
        argv = ["srun", *options, *bootstrap.relay_argv(pythons, self._nonce)]
        pipe = subprocess.PIPE
        # A session of its own, or the terminal's Ctrl-C would reach srun, which ends all tasks, before us.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, env=environ
        )
        self._orders.put(bootstrap.relay_code(self._nonce, BLOCK_BYTES, KEPT_BLOCKS))
        try:
            self._hearing = start_thread(self._hear, "hear srun", self._break)
            start_thread(self._write, "write srun", self._break)
            start_thread(self._read, "read srun", self._break)
        except LauncherError:
            self._process.terminate()
            raise

    def open(self, host: str, command: str, timeout_s: float) -> RelayChannel | None:
        """Start a process on a node, once all relays are there: srun reads nothing before; raise TransportError.

        None: this node is there, and others keep it waiting. A step without them may do.
        """
        relay = self._relays[host]
        with self._relays.changed:
            self._relays.wait_for(relay, lambda: not self._missing or relay.failure, timeout_s)
            if relay.here is not None and self._missing:
                return None
            if relay.here is not None and relay.failure is None:
                return self._open(relay, relay.here, command)
            relay.failure = relay.failure or self._words.not_started(host, timeout_s)
            self._end_if_unused()
        if self._is_ending:
            self._await_end()
        raise TransportError(relay.failure)

    def _open(self, relay: Relay, here: Here, command: str) -> RelayChannel:
        channel = self._relays.add_channel(relay, self)
        for line in self._words.lines(relay.host):
            channel.deliver(STDERR, as_noise(line))
        if relay.host in self._lost:
            self._orders.put(hang_line(here.task, self._lost[relay.host]))
        self._orders.put(open_line(channel.number, here.task, command))
        return channel

    def is_usable(self, host: str) -> bool:
        """Whether a process, another one perhaps, may be started there through this step."""
        return self._relays.is_usable(host) and not (self._is_ending and self._relays[host].was_asked)

    def present(self) -> dict[str, Here]:
        """Return the relays that run, or have run, by host."""
        return self._relays.present()

    def last_words(self, host: str) -> tuple[str, ...]:
        """Return what srun has said of a host so far."""
        return self._words.lines(host)

    def abandon(self) -> None:
        """End srun, which waits for nodes that don't come."""
        self._is_ending = True
        self._process.terminate()
        if not self._has_ended.wait(_KILL_S):
            self._process.kill()

    def tell_taken(self, channel: RelayChannel, size_bytes: int) -> None:
        """Let so much more output come."""
        self._orders.put(took_line(channel.number, size_bytes))

    def send_data(self, channel: RelayChannel, data: bytes) -> None:
        """Queue what goes to the process's stdin."""
        self._orders.put((channel.number, data))

    def leave(self, channel: RelayChannel) -> None:
        """Close the process's pipes; when no host needs srun any more, wait a moment for its end."""
        with self._relays.changed:
            if self._relays.leave(channel):
                self._orders.put(shut_line(channel.number))
            self._end_if_unused()
        if self._is_ending:
            self._await_end()

    def _end_if_unused(self) -> None:
        """Let srun end, which the end of its stdin brings about, once every host was asked and left."""
        if self._relays.are_unused():
            self._is_ending = True
            self._orders.put(None)

    def _await_end(self) -> None:
        """Wait for srun, without much patience where it has started nothing; a node that hangs must not keep it."""
        if not self._has_ended.wait(_END_S if self._relays.present() else 0):
            self._process.terminate()
            if not self._has_ended.wait(_KILL_S):
                self._process.kill()

    # ---- the threads ----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        assert self._process.stdin is not None  # asked for
        lines = DataLines()
        with self._process.stdin as stdin, contextlib.suppress(OSError):  # srun is gone, which the reader sees
            while (order := self._orders.get()) is not None:
                for line in (order,) if isinstance(order, bytes) else lines.encode(*order):
                    _write_all(stdin.fileno(), line)

    def _read(self) -> None:
        assert self._process.stdout is not None  # asked for
        decoder = LineDecoder(self._nonce)
        with self._process.stdout as stdout:
            _widen(stdout.fileno())
            while data := os.read(stdout.fileno(), READ_BYTES):
                for event in decoder.feed(data):
                    self._take(event)
                if len(data) > _FEW_BYTES:
                    time.sleep(_GATHER_S)
        self._finish()

    def _take(self, event: Event) -> None:
        if isinstance(event, Output | Exit):
            self._relays.deliver(event)
        elif isinstance(event, Here):
            with self._relays.changed:
                if event.node in self._hosts and self._relays[event.node].here is None:
                    self._relays[event.node].here = event
                    self._missing -= 1
                self._relays.changed.notify_all()
        else:
            self._hear_line(event.text.decode("utf-8", "replace"))

    def _hear(self) -> None:
        assert self._process.stderr is not None  # asked for
        with self._process.stderr as stderr:
            text = io.TextIOWrapper(stderr, "utf-8", "replace")
            for line in iter(partial(text.readline, MAX_LINE_BYTES), ""):
                self._hear_line(line.rstrip("\n"))

    def _hear_line(self, line: str) -> None:
        with self._relays.changed:
            gone = self._words.take(line)
            if says_something(line):
                self._relays.deliver_noise(line, gone)
        if gone:
            start_timer(_SETTLE_S, partial(self._lose, gone), self._break)

    def _lose(self, hosts: Sequence[str], exit_code: int | None = None) -> None:
        self._relays.lose([self._words.gone(host, exit_code) for host in hosts])

    def _break(self, error: Exception) -> None:
        """Nobody reads any more what the hosts say, or brings them a word."""
        self._relays.lose(
            [
                HostFailure(host, HostFailureKind.CONNECTION, f"launch can't talk to srun any more: {error!r}")
                for host in self._hosts
            ]
        )
        self._process.terminate()

    def _finish(self) -> None:
        """After the end of srun's stdout: nobody can be talked to any more."""
        exit_code = self._process.wait()
        self._hearing.join(_END_S)  # its last words say why
        self._lose(self._hosts, exit_code)
        self._orders.put(None)
        self._has_ended.set()


def _widen(pipe: int) -> None:
    """Let a pipe hold what comes while we gather; the usual 64 KB would slow a flood down."""
    with contextlib.suppress(OSError):  # a user may have only so much
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
