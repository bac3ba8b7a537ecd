"""What a remote launcher can be asked, as values that travel as a pickle: both sides run the same code."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.commands.logs import LogsRequest
from launcher.errors import EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.output.lines import STDERR, STDOUT
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_request import RunOptions
from launcher.transports.agents.credentials import Credentials

LENGTH_BYTES = 8
GATHERING_S = 20.0  # for agents to dial, beyond the time for the connections of the launch host
LEFT = "left"
SILENCE_S = 15.0  # for which an answer continues without hearing from the launch host
HUNG_UP = EXIT_SIGNAL_BASE + signal.SIGHUP  # the exit code of what doesn't hear from the launch host any more
REFUSED = "refused"  # after the exit code of a run that never started
UNKNOWN = "unknown"  # after the exit code, if no run has the id of a request


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


@dataclass(frozen=True, slots=True)
class List:
    """Print the rows of all runs as a JSON list."""


@dataclass(frozen=True, slots=True)
class Find:
    """Print the id of the run that this word means; None: the newest one."""

    word: str | None


@dataclass(frozen=True)
class OfRun:
    """A request about one run."""

    run: str  # its id


class Attach(OfRun):
    """Show a run until it ends."""


class Wait(OfRun):
    """Wait until a run has ended."""


class Stacks(OfRun):
    """Ask for the stacks of a run's ranks."""


class Fetch(OfRun):
    """Write the directory of a run's logs to stdout, as a tar archive whose first directory is the run's id."""


class Look(OfRun):
    """Tell whether a controller that this login has not started lives, and which agents it misses, as JSON."""


@dataclass(frozen=True)
class Logs(OfRun):
    """Print what a run has written."""

    which: LogsRequest


@dataclass(frozen=True)
class End(OfRun):
    """Stop a run."""

    is_now: bool


Request = Control | List | Find | OfRun


@dataclass(frozen=True, slots=True)
class Order:
    """A request with what it takes to answer it."""

    request: Request
    streams: OutputStreams  # where the answer is shown
    mark: bytes  # begins the last line of both streams: the exit code and REFUSED or UNKNOWN; LEFT if they end before
    silence_s: float = SILENCE_S  # after it the launch host is gone, unless the run was told to go on without it


def find_patience(job: Job) -> float:
    """Return for how many seconds the controller waits for its agents, which the launch host starts meanwhile."""
    return 2 * job.connect_timeout_s + GATHERING_S


def encode(order: Order) -> bytes:
    """Return an order as bytes, with its length before it."""
    data = pickle.dumps(order, protocol=4)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def decode(data: bytes) -> Order:
    """Return the order in these bytes, which come from the launcher that sent this code."""
    order = pickle.loads(data)
    assert isinstance(order, Order)
    return order


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
        self._is_written = False

    def write(self, word: str) -> None:
        """Write the word behind the mark, unless a last line was written."""
        was_written, self._is_written = self._is_written, True
        for fd in () if was_written else (STDOUT, STDERR):
            with contextlib.suppress(OSError):
                os.write(fd, self._mark + word.encode() + b"\n")
