"""What a launcher on another host is asked, as it travels there; `launcher.cli.answer` does it there.

Both sides run the same code, so an order travels as a pickle; nothing that comes back does. The output of what is asked
is what `launch` would print here; the launch host copies it to its own streams.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from launcher.concurrency import start_thread
from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.node import messages
from launcher.node.processes import proc
from launcher.output.lines import STDERR, STDOUT
from launcher.output.output_streams import OutputStreams
from launcher.output.terminal import write_some
from launcher.runs.run_request import RunOptions
from launcher.transports.agents.credentials import Credentials

_LENGTH_BYTES = 8
_READ_BYTES = 4096
GATHERING_S = 20.0  # for agents to dial, beyond the time for the connections of the launch host
SIGNAL = "signal"  # launch host -> controller, besides GO: one that the user has sent with the keyboard
LISTENING = "listening"  # controller -> launch host, for its agents; then all that have come, and which are missing
GATHERED = "gathered"
END = "end"
LEFT = "left"  # once all ranks run
LEFT_QUEUED = "left queued"
BEAT_S = 5.0  # between two heartbeats of either side, or less
SILENCE_S = 15.0  # for which an answer continues without hearing from the launch host
HUNG_UP = EXIT_SIGNAL_BASE + signal.SIGHUP  # the exit code of what doesn't hear from the launch host any more
REFUSED = "refused"  # after the exit code of a run that never started
UNKNOWN = "unknown"  # after the exit code, if no run has the id that was asked about


@dataclass(frozen=True, slots=True)
class Control:
    """Control a run, from its checks to its end."""

    job: Job
    hosts: tuple[Host, ...]
    spares: tuple[Host, ...]
    options: RunOptions
    known: Mapping[str, Any]  # the first values of run.json
    credentials: Credentials
    run_id: str  # unless another run has it there
    is_quiet: bool = False
    as_json: bool = False
    notify: str | None = None
    host: str = ""  # the name of the controlling host, as the launch host has it
    incidents: Mapping[str, str] = field(default_factory=dict)  # what went wrong with hosts in earlier runs, in words


Action = Control | tuple[str, ...]  # or a command about runs that are controlled there: its words after `launch`


@dataclass(frozen=True, slots=True)
class Order:
    """What to do, and what it takes to answer."""

    action: Action
    streams: OutputStreams  # where the answer is shown
    # Begins the last line of both streams; behind it comes END on stdout, and on stderr the exit code and REFUSED or
    # UNKNOWN, or why they end before that. A heartbeat on stderr is the mark alone.
    mark: bytes
    silence_s: float = SILENCE_S  # after it the launch host is gone, unless the run was told to go on without it


def encode(order: Order) -> bytes:
    """Return an order as bytes, with its length before it."""
    data = pickle.dumps(order, protocol=4)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def find_patience(job: Job) -> float:
    """Return for how many seconds the controller waits for its agents, which the launch host starts meanwhile."""
    return 2 * job.timeouts.connect_timeout_s + GATHERING_S


# ---- on the other host -----------------------------------------------------------------------------------------------


def take(wait_s: int) -> tuple[Order, LastLine]:
    """Read one order from stdin, and begin to send heartbeats; wait_s: for the next bytes of the order."""
    proc.name_process("launch")
    data = _take(int.from_bytes(_take(_LENGTH_BYTES, wait_s), "big"), wait_s)
    order = pickle.loads(data)  # it comes from the launcher that sent this code
    assert isinstance(order, Order)
    last_line = LastLine(order.mark)
    period_s = min(BEAT_S, order.silence_s / messages.BEATS_PER_SILENCE)
    start_thread(partial(last_line.beat, period_s), "beat", lambda error: None)
    return order, last_line


def _take(size: int, wait_s: float) -> bytes:
    """Read so many bytes, and none of those behind them; exit if the launch host is silent for `wait_s`."""
    data = b""
    while len(data) < size:
        piece = read_in_time(size - len(data), wait_s)
        if not piece:
            os._exit(EXIT_FAILED)
        data += piece
    return data


def end_with_the_login(silence_s: float) -> NoReturn:
    """Exit once the launch host hangs up, or is silent for that long."""
    while read_in_time(_READ_BYTES, silence_s):
        pass
    os._exit(HUNG_UP)


def read_in_time(size: int, silence_s: float | None) -> bytes:
    """Read from the launch host; return nothing if it hangs up, or is silent for that long.

    It sends heartbeats. Without them, sshd may not notice for hours that a machine has lost power.
    """
    ready, _, _ = select.select([0], [], [], silence_s)
    return os.read(0, size) if ready else b""


class LastLine:
    """The last line of both streams of this process, which is written once; nobody may read it any more."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._is_written = False

    def write(self, word: str) -> None:
        """Write the word behind the mark, unless a last line was written."""
        with self._lock:
            was_written, self._is_written = self._is_written, True
        if was_written:
            return
        for fd, text in ((STDOUT, END), (STDERR, word)):
            with contextlib.suppress(OSError):
                view = memoryview(self._mark + text.encode() + b"\n")
                while view:
                    view = view[write_some(fd, view) :]

    def beat(self, period_s: float) -> None:
        """Write the mark alone again and again until there is a last line: this process responds."""
        while True:
            with self._lock:
                if self._is_written:
                    return
                with contextlib.suppress(OSError):
                    os.write(STDERR, self._mark + b"\n")
            time.sleep(period_s)
