"""What every transport gets, and what it provides: a channel to a process that it starts on a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher.errors import HostFailure, HostFailureKind, LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Timeouts
from launcher.job.slurm_allocation import Allocation

STDOUT, STDERR = 1, 2
READ_BYTES = 1 << 18
KILLED = 128  # exit code for a signal whose number the transport doesn't report


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The options by which the hosts are reached, and what `launch` has found out for them.

    Each transport uses what applies to it. The first values are those of the options of the same names; the others are
    known once the transport is chosen.
    """

    transport: str | None = None  # the one that the user wants; None: srun in a Slurm job, else fabric
    ssh_config: Path | None = None  # instead of the user's and the system's files
    ask_password: bool = False  # one for all hosts, see `password`
    is_unattended: bool = False  # only to hosts that are known, with keys that need no passphrase or agent
    may_boot: bool = False  # wait for a host that isn't up yet, for as long as Transport.open may take
    password: str | None = None  # what was typed for --ask-password
    say: Callable[[str], object] = lambda text: None  # gets what users must know of how a host is reached
    pythons: Sequence[str] = ()  # names or paths of Python on the hosts, in the order of trying
    variables: Mapping[str, str] = field(default_factory=dict)  # the environment of srun, pdsh and an unattended ssh
    silence_s: float = Timeouts().silence_s  # a host ends its ranks when it has not heard from `launch` for this long
    allocation: Allocation | None = None  # the Slurm job that `launch` runs in


def check_config_file(path: Path | None) -> None:
    """Raise UsageError if `--ssh-config` names a file that isn't there."""
    if path is not None and not path.is_file():
        raise UsageError(f"{path}: no such file", "name an OpenSSH client configuration with --ssh-config")


class TransportError(Exception):
    """A host can't be reached; `failure` is what to report. Transports convert every error of their libraries to it."""

    def __init__(self, failure: HostFailure) -> None:
        super().__init__(f"{failure.host}: {failure.text}")
        self.failure = failure


def failure_of(host: str, error: Exception) -> HostFailure:
    """Return what is to be reported of a host, whatever was raised while it was served."""
    if isinstance(error, TransportError):
        return error.failure
    if isinstance(error, LauncherError):
        return HostFailure(host, HostFailureKind.CONFIGURATION, error.message, error.fix)
    return HostFailure(host, HostFailureKind.CONNECTION, f"the connection was lost: {error!r}")


class Channel(Protocol):
    """The standard streams of one process on a host.

    One thread may read and one may write; any thread may call `close`, any number of times.
    """

    def read(self) -> tuple[int, bytes]:
        """Block for the next piece: (1, data) of stdout, (2, data) of stderr, (0, b"") at the end of both."""

    def write(self, data: bytes) -> None:
        """Block until all of `data` is accepted for sending; raise OSError if the process can't be reached any more."""

    def close(self) -> None:
        """Close the streams: the process sees end of file, and a blocked `read` returns."""

    def exit_code(self) -> int | None:
        """Return the process's exit code, KILLED for an unknown signal, or None if the connection was lost."""


class Transport(Protocol):
    """Starts processes on hosts; threads may open several hosts at once."""

    name: str

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        """Start `command`, a shell's command line, on `host`; block until it is started, or raise TransportError."""

    def own_messages(self, host: Host) -> Sequence[str]:
        """Return what the transport's own program has printed about a host; it may print after the process's end."""
