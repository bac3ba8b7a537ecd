"""Measure one command on many hosts: how soon all have started, what they cost idle, how fast their output arrives."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.process_tree import cpu_seconds, memory_mib, peak_mib
from bench.ways import Argv

LINE_BYTES = 100
READ_BYTES = 1 << 18
SILENCE_S = 60.0  # without an expected byte: something is stuck
SETTLE_S = 3.0  # until the start is over
END_S = 20.0


@dataclass(frozen=True, slots=True)
class Held:
    """The cost of a session; of the whole process tree, unless stated otherwise."""

    connect_s: float  # until every host has printed something
    idle_percent: float  # of a core
    idle_mib: float
    stream_mb_per_s: float
    stream_cpu_s: float  # for 100 MB
    peak_mib: float  # of the first process only


@dataclass(frozen=True, slots=True)
class Gate:
    """A FIFO on which all hosts wait, since they are one machine: none sends before all are ready."""

    path: Path

    def command(self, lines: int) -> str:
        """Return a shell command that prints one line, waits, and prints the given number of lines."""
        return f"echo ready; : <{self.path}; yes {'x' * (LINE_BYTES - 1)} | head -n {lines}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Let the waiting hosts continue."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            yield
        finally:
            os.close(fd)


@contextlib.contextmanager
def gate() -> Iterator[Gate]:
    """Make a gate; at the end let all hosts through and remove it."""
    with tempfile.TemporaryDirectory(prefix="bench-gate-") as folder:
        made = Gate(Path(folder) / "gate")
        os.mkfifo(made.path)
        try:
            yield made
        finally:
            with made.opened():  # a host that still waits after Ctrl-C has no reader and exits
                time.sleep(0.1)


def hold(argv: Argv, door: Gate, hosts: int, lines: int, idle_s: float) -> Held:
    """Run the command made from `door.command(lines)` and measure it; raise RuntimeError if it fails."""
    started = time.monotonic()
    with _start(argv) as (process, stdout):
        _await_lines(stdout, hosts)
        connect_s = time.monotonic() - started
        idle_percent = _idle_percent(process.pid, idle_s) if idle_s else 0.0
        idle_mib = memory_mib(process.pid)
        cpu_before, opened = cpu_seconds(process.pid), time.monotonic()
        with door.opened():
            _await_lines(stdout, hosts * lines)
            seconds, cpu = time.monotonic() - opened, cpu_seconds(process.pid) - cpu_before
        peak = peak_mib(process.pid)
    megabytes = hosts * lines * LINE_BYTES / 1e6
    return Held(connect_s, idle_percent, idle_mib, megabytes / seconds, cpu * 100 / megabytes, peak)


def _idle_percent(pid: int, idle_s: float) -> float:
    time.sleep(SETTLE_S)
    before, started = cpu_seconds(pid), time.monotonic()
    time.sleep(idle_s)
    return (cpu_seconds(pid) - before) / (time.monotonic() - started) * 100


@contextlib.contextmanager
def _start(argv: Argv) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a process in its own process group; at the end it has exited with 0, or an error has stopped it."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdout is not None
        is_short = False
        with process.stdout as stdout:
            try:
                yield process, stdout.fileno()
                while os.read(stdout.fileno(), READ_BYTES):
                    pass
                process.wait(END_S)
            except EOFError:
                is_short = True
                process.wait(END_S)
            finally:
                _end_group(process)
        if process.returncode or is_short:
            words = "its output is not whole, " if is_short else ""
            raise RuntimeError(f"{argv[-1]}: {words}exit code {process.returncode}\n{_read_all(errors)}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)


def _await_lines(fd: int, wanted: int) -> None:
    """Read the wanted number of lines; raise EOFError or TimeoutError."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while wanted > 0:
        if not poll.poll(SILENCE_S * 1000):
            raise TimeoutError(f"{wanted} lines did not arrive")
        data = os.read(fd, READ_BYTES)
        if not data:
            raise EOFError
        wanted -= data.count(b"\n")


def _read_all(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
