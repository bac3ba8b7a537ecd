"""Start a controller on one host and an agent on every host, and watch until the run can do without this terminal.

Until the controller gets `go` nothing is started, and whatever ends this process ends them. From then on the run is the
controller's, and this process only shows its output and passes on what is typed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from launcher.concurrency import start_thread
from launcher.controller.agent_start import await_answer, give_order, make_order, open_agent
from launcher.controller.orders import GATHERED, LISTENING, SIGNAL, Control, find_patience
from launcher.controller.remote_launcher import RemoteLauncher
from launcher.errors import HostFailure, HostFailureKind, HostsUnreachable
from launcher.escapes import clean
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names, shown
from launcher.node import messages
from launcher.open_files import allow_open_files
from launcher.output.lines import STDERR
from launcher.output.output_streams import OutputStreams
from launcher.output.run_folder import is_run_id
from launcher.session.pool import CONNECT_WINDOW, FILES_PER_HOST, OWN_FILES
from launcher.session.signals import outlast_signals
from launcher.transports.base import Channel, Transport, TransportError, failure_of

MARGIN_S = 5.0  # for the answer of a controller that waits for an agent in vain

_FAILED, _DIALLED, _GATHERED, _SIGNAL, _OVER = "failed", "dialled", "gathered", "signal", "over"


class Planting:
    """The controller and the agents of one run, until the run is under way."""

    def __init__(
        self, controller: Host, request: Control, transport: Transport, pythons: Sequence[str], streams: OutputStreams,
    ) -> None:  # fmt: skip
        self.run_id = ""
        self._controller = controller
        self._request = request
        self._transport = transport
        self._pythons = pythons
        self._streams = streams
        self._hosts = (*request.hosts, *request.spares)
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._is_listening = threading.Event()
        self._listening: Mapping[str, Any] = {}
        self._channels: list[Channel] = []
        self._launcher: RemoteLauncher | None = None
        self._window = threading.Semaphore(CONNECT_WINDOW)
        self._may_have_started = False

    def gather(self, progress: Callable[[str], object]) -> str:
        """Start all of them, and return the id of the run once every agent has reached the controller.

        Raise HostsUnreachable for hosts that can't take part. progress: gets what is waited for.
        """
        allow_open_files(OWN_FILES + FILES_PER_HOST * len(self._hosts))
        start_thread(self._serve_controller, "controller", partial(self._fail, self._controller))
        for index, host in enumerate(self._hosts):
            start_thread(partial(self._serve_agent, index, host), f"agent {host.name}", partial(self._fail, host))
        waiting = {host.name for host in self._hosts}
        deadline = time.monotonic() + find_patience(self._request.job) + MARGIN_S
        failures: list[HostFailure] = []
        is_gathered = False
        while not is_gathered and not failures:
            progress(f"connecting to {fold_names(sorted(waiting)) if waiting else self._controller.name}")
            try:
                kind, value = self._events.get(timeout=max(0.1, deadline - time.monotonic()))
            except Empty:
                late = sorted(waiting) or [self._controller.name]
                raise HostsUnreachable([_late(name) for name in late]) from None
            if kind == _DIALLED:
                waiting.discard(value)
            elif kind == _FAILED:
                failures = [value, *self._collect_failures()]
            elif kind == _GATHERED:
                is_gathered = True
                os.write(STDERR, clean(value))  # such as a disk that is full
        if failures:
            raise HostsUnreachable(failures)
        return self.run_id

    def attach(self) -> int | None:
        """Let the run start; show its output until it ends, or until all ranks have run for a while.

        Return the exit code of a run that has ended, and None for one that continues. Raise TransportError if the
        connection to the controller was lost: the run may continue.
        """
        assert self._launcher is not None  # all are gathered
        numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTERM)
        ignored = {number for number in numbers if signal.getsignal(number) == signal.SIG_IGN}  # see catch_signals
        # From before `go`: a run that may have started must hear of Ctrl-C.
        before = {number: signal.signal(number, self._take_signal) for number in {*numbers} - ignored}
        code = None
        try:
            self._may_have_started = True
            self._launcher.send(messages.GO)
            code = self._watch()
        finally:
            for number, handler in before.items() if code is None else ():
                signal.signal(number, handler)
        if code is not None:
            outlast_signals(before, partial(os._exit, code))
        return code

    def _take_signal(self, number: int, _: object) -> None:
        self._events.put((_SIGNAL, number))

    def _watch(self) -> int | None:
        assert self._launcher is not None  # all are gathered
        start_thread(self._copy_output, "output", partial(self._fail, self._controller))
        while True:
            kind, value = self._events.get()
            if kind == _SIGNAL:
                self._launcher.send(SIGNAL, number=value)
            elif kind == _OVER:
                code: int | None = value
                return code
            elif kind == _FAILED:
                raise TransportError(value)

    @property
    def was_refused(self) -> bool:
        """Whether the run has ended before its ranks were started, or was not told to start yet."""
        return not self._may_have_started or (self._launcher is not None and self._launcher.was_refused)

    @property
    def is_queued(self) -> bool:
        """Whether the run continues in the queue, before any rank runs."""
        return self._launcher is not None and self._launcher.is_queued

    def close(self) -> None:
        """Hang up everywhere."""
        if self._launcher is not None:
            self._launcher.close()
        for channel in self._channels:
            with contextlib.suppress(Exception):  # a connection that is broken already
                channel.close()

    # ---- in the controller's thread -----------------------------------------------------------------------------

    def _serve_controller(self) -> None:
        timeout_s = self._request.job.timeouts.connect_timeout_s
        try:
            launcher = RemoteLauncher(self._transport, self._controller, self._pythons, timeout_s)
            self._launcher = launcher
            launcher.ask(self._request, self._streams)
            self._read_answers(launcher)
        except TransportError as error:
            self._events.put((_FAILED, error.failure))

    def _read_answers(self, launcher: RemoteLauncher) -> None:
        """Read until all agents are there; what comes after `go` is output."""
        decoder, said = messages.Decoder(), b""
        for stream, data in launcher.pieces():
            if stream == STDERR:
                said += data
                continue
            for header, _ in decoder.feed(data):
                if header["type"] == LISTENING:
                    self.run_id = _check_id(header["run"], self._controller.name)
                    self._listening = header
                    self._is_listening.set()
                elif header["type"] == GATHERED:
                    for name in header["missing"]:
                        self._events.put((_FAILED, _late(name)))
                    if not header["missing"]:
                        self._events.put((_GATHERED, said))
                    return
        text, _, fix = said.decode("utf-8", "replace").strip().removeprefix("launch: ").partition("\n  fix: ")
        raise TransportError(HostFailure(self._controller.name, HostFailureKind.SUPERVISOR, text, fix))

    def _copy_output(self) -> None:
        assert self._launcher is not None  # it was started
        try:
            self._events.put((_OVER, self._launcher.copy_output(_tell_closed)))
        except TransportError as error:
            self._events.put((_FAILED, error.failure))

    # ---- in the thread of each agent ----------------------------------------------------------------------------

    def _serve_agent(self, index: int, host: Host) -> None:
        job = self._request.job
        try:
            with self._window:
                python = open_agent(self._transport, host, self._pythons, job.timeouts.connect_timeout_s)
            self._channels.append(python.channel)
            with contextlib.suppress(OSError):  # reading tells why it has ended
                while not self._is_listening.wait(job.timeouts.connect_timeout_s / messages.BEATS_PER_SILENCE):
                    python.channel.write(messages.encode(messages.BEAT))
            if self._is_listening.is_set():
                addresses, port = self._listening["addresses"], self._listening["port"]
                order = make_order(self._request, self.run_id, index, host, self._controller, addresses, port)
                give_order(python.channel, order)
            await_answer(python.channel, host, self._controller.name)
            self._events.put((_DIALLED, host.name))  # from now on the controller sees whether it lives
        except TransportError as error:
            self._events.put((_FAILED, error.failure))

    # ---- failures -----------------------------------------------------------------------------------------------

    def _fail(self, host: Host, error: Exception) -> None:
        """Take what a thread has raised."""
        self._events.put((_FAILED, failure_of(host.name, error)))

    def _collect_failures(self) -> list[HostFailure]:
        """Return the failures of other hosts that come right after the first one."""
        found, deadline = [], time.monotonic() + 1.0
        with contextlib.suppress(Empty):
            while True:
                kind, value = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
                if kind == _FAILED:
                    found.append(value)
        return found


def _tell_closed(error: OSError) -> None:
    with contextlib.suppress(OSError):
        text = f"launch: can't write its output any more ({error.strerror}); the run continues\n"
        os.write(STDERR, text.encode())


def _check_id(run_id: object, host: str) -> str:
    """Return the id of the run; raise TransportError if it could not be the name of a directory here."""
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise TransportError(HostFailure(host, HostFailureKind.PROTOCOL, f"{shown(str(run_id))} is no run id"))
    return run_id


def _late(name: str) -> HostFailure:
    text = "its agent has not reached the controller in time"
    return HostFailure(name, HostFailureKind.TIMED_OUT, text, "raise --connect-timeout, or use --controller here")
