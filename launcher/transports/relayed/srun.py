"""--transport srun: the nodes of a Slurm allocation, through one srun with a relay on each (docs/decisions/0009)."""

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

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.transports import bootstrap
from launcher.transports.base import READ_BYTES, TransportError
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import (
    BLOCK_BYTES,
    KEPT_BLOCKS,
    MAX_LINE_BYTES,
    DataLines,
    Event,
    Exit,
    LineDecoder,
    ProcessOutput,
    RelayStarted,
    hang_line,
    open_line,
    shut_line,
    took_line,
)
from launcher.transports.relayed.srun_output import SrunOutput, is_worth_showing
from launcher.transports.relayed.step_lifecycle import HostRelay, StepLifecycle

# srun writes much output in pieces of 1 KB, each of which would wake the reader: it lets them gather for a moment.
_FEW_BYTES = 512
_GATHER_S = 0.002
_PIPE_BYTES = 1 << 20
_MOST_BYTES = 4 << 20  # four windows of a relay
_END_S = 2.0  # for srun to end by itself
_KILL_S = 1.0


class SrunTransport:
    """Reaches the nodes of the allocation that `launch` runs in, with all CPUs, GPUs and memory that it has there.

    The first `open` starts one step for all hosts. A host that is lost later, or held up by others, gets another one.
    """

    name = "srun"

    def __init__(
        self, hosts: Sequence[Host], allocation: Allocation, pythons: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        """Start nothing yet; srun and the ranks get `environ` as their environment."""
        self._hosts = [host.name for host in hosts]
        self._allocation = allocation
        self._pythons = pythons
        self._environ = environ
        self._steps: dict[str, SrunStep] = {}  # the last one of each host
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> RelayChannel:
        try:
            step = self._find_step(host.name)
            while (channel := step.open(host.name, command, timeout_s)) is None:
                step = self._go_on_without_others(host.name, step)
        except OSError as error:
            fix = "load Slurm's module, or use --transport fabric"
            failure = HostFailure(host.name, HostFailureKind.SLURM, f"srun can't be started: {error.strerror}", fix)
            raise TransportError(failure) from None
        return channel

    def own_messages(self, host: Host) -> Sequence[str]:
        step = self._steps.get(host.name)
        return () if step is None else step.own_messages(host.name)

    def _find_step(self, host: str) -> SrunStep:
        """Return a usable step: the one for all hosts, or another for this host alone after that one has lost it."""
        with self._lock:
            step = self._steps.get(host)
            if step is None:
                self._start(self._hosts, {})
            elif not step.is_usable(host):
                self._start([host], step.present())
            return self._steps[host]

    def _go_on_without_others(self, host: str, step: SrunStep) -> SrunStep:
        """Return a step of the nodes whose relays have started; the first host to give up the old one starts it."""
        with self._lock:
            if self._steps[host] is step:
                step.abandon()
                present = step.present()
                self._start(list(present), present)
            return self._steps[host]

    def _start(self, hosts: Sequence[str], lost: Mapping[str, RelayStarted]) -> None:
        step = SrunStep(hosts, srun_options(self._allocation, hosts), self._pythons, self._environ, lost)
        self._steps.update(dict.fromkeys(hosts, step))


def srun_options(allocation: Allocation, hosts: Sequence[str]) -> list[str]:
    """Return the options that start one task on each host, with all that the job has on it."""
    # A step gets all GPUs of a job with --gres, but not of one with --gpus or --gpus-per-task (22.05 gives one less).
    gpus = [f"--gres=gpu:{allocation.gpus_per_node}"] if allocation.gpus_per_node else []
    return [
        f"--jobid={allocation.job_id}",
        f"--nodelist={','.join(hosts)}",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        "--overlap",  # CPUs, memory and GPUs may be in use by the step that `launch` runs in (Slurm 20.11)
        "--mem=0",  # all that the job has
        *gpus,
        "--cpu-bind=none",
        "--mpi=none",
        # `launch` decides how a run ends, whatever the site's defaults are.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--input=all",
        "--chdir=/",  # the relay changes to the home directory, as a login does
        "--job-name=launch",
    ]


class SrunStep:
    """One srun on some nodes of an allocation: what StepLifecycle needs of it, and how relays get their orders.

    Three threads block on srun's streams: one reads stdout, one reads stderr, one writes stdin.
    """

    def __init__(
        self, hosts: Sequence[str], options: Sequence[str], pythons: Sequence[str], environ: Mapping[str, str],
        lost: Mapping[str, RelayStarted],
    ) -> None:  # fmt: skip
        """Start srun, or raise OSError; lost: relays of an earlier step, which may not know that its srun is gone."""
        self._hosts = tuple(hosts)
        self._lifecycle = StepLifecycle(hosts, self, "talk to srun", _MOST_BYTES)
        self._relays = self._lifecycle.relays
        self._lost = lost
        self._nonce = secrets.token_hex(4)
        self._output = SrunOutput(hosts, pythons)
        self._orders: SimpleQueue[bytes | tuple[int, bytes] | None] = SimpleQueue()
        self._has_ended = threading.Event()
        argv = ["srun", *options, *bootstrap.relay_argv(pythons, self._nonce)]
        pipe = subprocess.PIPE
        # In a session of its own: the terminal's Ctrl-C would make srun end all tasks before `launch` hears of it.
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True, env=environ
        )
        self._orders.put(bootstrap.relay_code(self._nonce, BLOCK_BYTES, KEPT_BLOCKS))
        with self._lifecycle.starting():
            self._stderr_reader = self._lifecycle.start_thread(self._read_stderr, "hear srun")
            self._lifecycle.start_thread(self._write_stdin, "write srun")
            self._lifecycle.start_thread(self._read_stdout, "read srun")

    def open(self, host: str, command: str, timeout_s: float) -> RelayChannel | None:
        """Start a process on a node when all relays have started, since srun reads no input before.

        Return None if this node's relay has started and others have not in time: a step without those nodes may work.
        Raise TransportError if this node's has not.
        """
        relay = self._relays[host]
        with self._relays.changed:
            self._relays.wait_for(relay, lambda: self._relays.are_complete() or relay.failure, timeout_s)
            if relay.started is not None and not self._relays.are_complete():
                self._give_up_missing(timeout_s)
                return None
            if relay.started is not None and relay.failure is None:
                return self._open(relay, relay.started, command)
            failure = self._lifecycle.give_up(relay, self._output.not_started(host, timeout_s))
        if self._lifecycle.is_ending:
            self.await_end()
        raise TransportError(failure)

    def _give_up_missing(self, timeout_s: float) -> None:
        """Count nodes whose relay has not started as lost before srun is ended because of them: its end is no cause."""
        for host in self._hosts:
            relay = self._relays[host]
            if relay.started is None and relay.failure is None:
                self._lifecycle.give_up(relay, self._output.not_started(host, timeout_s))

    def _open(self, relay: HostRelay, started: RelayStarted, command: str) -> RelayChannel:
        channel = self._lifecycle.open_channel(relay, self, self._output.lines(relay.host))
        if relay.host in self._lost:
            self._orders.put(hang_line(started.task, self._lost[relay.host]))
        self._orders.put(open_line(channel.number, started.task, command))
        return channel

    def is_usable(self, host: str) -> bool:
        """Tell whether a process, another one perhaps, may be started on a node through this step."""
        return self._lifecycle.is_usable(host)

    def present(self) -> dict[str, RelayStarted]:
        """Return the relays that have started, by host; some may have ended."""
        return self._relays.present()

    def own_messages(self, host: str) -> tuple[str, ...]:
        """Return the last lines that srun has printed about a host."""
        return self._output.lines(host)

    def abandon(self) -> None:
        """End srun, which waits for nodes that don't come."""
        self._lifecycle.abandon()
        if not self._has_ended.wait(_KILL_S):
            self._process.kill()

    def acknowledge(self, channel: RelayChannel, size_bytes: int) -> None:
        """Queue the order that lets the relay send this much more output."""
        self._orders.put(took_line(channel.number, size_bytes))

    def send_data(self, channel: RelayChannel, data: bytes) -> None:
        """Queue data for the process's stdin."""
        self._orders.put((channel.number, data))

    def leave(self, channel: RelayChannel) -> None:
        """Close the process's pipes; if no host needs srun any more, wait a moment for its end."""
        self._lifecycle.leave(channel)

    # ---- what the lifecycle asks for ------------------------------------------------------------------------------

    def send_shut(self, channel: RelayChannel) -> None:
        """Queue the order that closes the process's pipes."""
        self._orders.put(shut_line(channel.number))

    def begin_end(self) -> None:
        """Let srun end, by closing its stdin."""
        self._orders.put(None)

    def await_end(self) -> None:
        """Wait for srun, or not at all if no relay has started; then end it, since a node that hangs would keep it."""
        if not self._has_ended.wait(_END_S if self._relays.present() else 0):
            self._process.terminate()
            if not self._has_ended.wait(_KILL_S):
                self._process.kill()

    def terminate(self) -> None:
        """End srun, and with it every task."""
        self._process.terminate()

    def why_lost(self, host: str) -> HostFailure:
        """Return what srun has printed about the end of a node's task, or how srun itself has ended."""
        return self._output.gone(host, self._process.returncode)

    # ---- the threads ----------------------------------------------------------------------------------------------

    def _write_stdin(self) -> None:
        assert self._process.stdin is not None  # asked for
        lines = DataLines()
        with self._process.stdin as stdin, contextlib.suppress(OSError):  # srun is gone, which the reader sees
            while (order := self._orders.get()) is not None:
                for line in (order,) if isinstance(order, bytes) else lines.encode(*order):
                    _write_all(stdin.fileno(), line)

    def _read_stdout(self) -> None:
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
        if isinstance(event, ProcessOutput | Exit):
            self._relays.deliver(event)
        elif isinstance(event, RelayStarted):
            if event.node in self._hosts:
                self._relays.mark_started(event.node, event)
        else:
            self._take_line(event.text.decode("utf-8", "replace"))

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # asked for
        with self._process.stderr as stderr:
            text = io.TextIOWrapper(stderr, "utf-8", "replace")
            for line in iter(partial(text.readline, MAX_LINE_BYTES), ""):
                self._take_line(line.rstrip("\n"))

    def _take_line(self, line: str) -> None:
        with self._relays.changed:
            gone = self._output.take(line)
            if is_worth_showing(line):
                self._relays.deliver_noise(line, gone)
        if gone:
            self._lifecycle.lose_soon(gone)

    def _finish(self) -> None:
        """Lose all hosts after the end of srun's stdout: no relay can be reached any more."""
        self._process.wait()
        self._stderr_reader.join(_END_S)  # the last lines of stderr say why
        self._lifecycle.lose(self._hosts)
        self._orders.put(None)
        self._has_ended.set()


def _widen(pipe: int) -> None:
    """Enlarge a pipe for what comes while output gathers; with the usual 64 KB srun would have to wait."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
        with contextlib.suppress(OSError):  # a user may have only so much
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
