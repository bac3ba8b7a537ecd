"""Every error that a user can meet, and the exit code that belongs to it.

    LauncherError                 exit code 1
      UsageError                  2    a wrong option, file or value
        HostfileError             2    the same, with file and line
      HostsUnreachable            69   a host can't be reached (EX_UNAVAILABLE of sysexits.h)
      ChecksFailed                70   the hosts respond but can't train together (EX_SOFTWARE)

A Python program that uses `launcher` gets the same classes, the first one as `launcher.Error`, and for a run that had
begun `RunFailed` and `RankFailed` of `launcher.api.values`, which only it can raise.

The library raises; `launcher.cli` prints the error and exits. Other messages are also printed
by `output`, and by `commands.run_answers` and `cli.answer`, which answer for the host that controls a run.

How an error reaches the screen: a LauncherError ends the command. What goes wrong on one host of many must not, so
it is a value. There are five types of such values, and none of them prints or exits:

    HostFailure    here                     why one host takes no part
    Finding        preflight.findings       what the checks found on the hosts that respond
    Failure        diagnosis.failure        what ended a run, or a part of it, unexpectedly
    Explanation    diagnosis.signatures     why something failed and how to fix it, in words
    Cause          diagnosis.cause          the first Failure of a run, with its last lines and its Explanation

A transport that does not reach a host raises TransportError, which carries a HostFailure. `session.connection` catches
it, turns any other failure of a connection into a HostFailure, and raises nothing; `session.node_state` creates one
if a supervisor reports that it has failed.

- Before a run starts, `runs.attempt` raises one HostsUnreachable for all HostFailures (see `hosts.unreachable`), or
  one ChecksFailed for all Findings that are problems; it prints the warnings and continues. `launch check` prints
  both, and exits with the same codes.
- After the start, `runs.judge` makes a Failure of each process that failed and of each HostFailure.
  `find_cause` picks the first one and explains it, `runs.report` turns that Cause into text, and the run's
  exit code is `Cause.failure.exit_code`.
- `launch exec` and `launch clean` have no Cause: they print their HostFailures with `hosts.unreachable`, and exit with
  69 unless something else failed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from launcher.escapes import one_line

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69
EXIT_PREFLIGHT = 70
EXIT_HANG = 124  # the exit code of timeout(1)
EXIT_SIGNAL_BASE = 128

_MAX_FAILURE = 500  # characters of its text
_MAX_FIX = 10_000  # it may name many keys


class LauncherError(Exception):
    """One clear line (where, what, value) and the remedy, printed as `fix:`."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        """Let every error be pickled, whatever its class takes to be made."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class UsageError(LauncherError):
    """The command, an option or a file is wrong; nothing was started."""

    exit_code = EXIT_USAGE


class HostfileError(UsageError):
    """A line of a hostfile (or of --hosts) can't be understood."""

    def __init__(self, source: str, line: int | None, message: str, fix: str = "") -> None:
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {message}", fix)
        self.source = source
        self.line = line


class HostFailureKind(str, Enum):
    """How a host failed, in words that don't change with the details: `launch check --json` prints them.

    The code compares members; a member is a string only so that JSON writes its value.
    """

    # Reaching its sshd.
    NAME_UNKNOWN = "name unknown"  # its name has no address
    REFUSED = "refused"  # nothing listens on its port
    TIMED_OUT = "timed out"  # it doesn't respond
    NO_ROUTE = "no route"  # the network has no route to it
    NO_WAY = "no way"  # its jump host can't reach it
    CUT_OFF = "cut off"  # its ProxyCommand ended
    # Its sshd, before and during the login.
    NO_SSH = "no ssh"  # what responds isn't an SSH server
    DROPPED = "dropped"  # sshd hung up before its banner, as it does at random beyond MaxStartups
    SLOW_LOGIN = "slow login"  # it responds, but didn't finish the login in time
    LOST = "lost"  # the connection ended during the login
    HOST_KEY_UNKNOWN = "host key unknown"
    HOST_KEY_CHANGED = "host key changed"
    HOST_KEY_REVOKED = "host key revoked"
    KEY_ENCRYPTED = "key encrypted"  # the user's key needs a passphrase that wasn't given
    LOGIN_REFUSED = "login refused"
    SSH = "ssh"  # anything else, in the words of the SSH client
    # Programs on this machine that connect to the hosts.
    PDSH = "pdsh"  # it can't be started
    SLURM = "slurm"  # srun can't be started or has ended, or Slurm didn't start the step or stopped it
    THREADS = "threads"  # this machine can't start another thread
    CONFIGURATION = "configuration"  # a LauncherError while connecting, such as a broken ssh_config
    # Starting the supervisor, after the login.
    SHELL = "shell"  # its login shell waits, prints without end, or exited before the supervisor started
    NO_PYTHON = "no python"  # no Python there is new enough for the supervisor
    NOT_LINUX = "not linux"  # the supervisor needs Linux
    CLOSED = "closed"  # `launch` ended before it was reached
    # The supervisor, after its first message.
    CONNECTION = "connection"  # the connection ended
    SILENT = "silent"  # no heartbeat came for too long
    STANDSTILL = "standstill"  # this machine was suspended for so long that the host stopped the run
    PROTOCOL = "protocol"  # it sent something that isn't a message, or that `launch` didn't request
    FACTS = "facts"  # its facts are invalid
    SUPERVISOR = "supervisor"  # supervisor or guardian exited, or couldn't do what `launch` requested


@dataclass(frozen=True, slots=True)
class HostFailure:
    """Why one host takes no part: a kind for programs, one line of text, and the remedy, if there is one.

    Text and fix never hold a newline or another control character, whoever wrote them, and the text is cut at 500
    characters.
    """

    host: str  # a host that can't be reached, as you wrote it; a jump host as in ssh_config
    kind: HostFailureKind  # why, in one or two words
    text: str  # why
    fix: str = ""  # what to do
    address: str = ""  # the address that was tried; text and fix may name it

    def __post_init__(self) -> None:
        """Make both safe: parts of them may come from the host, or from another machine that answered for it."""
        object.__setattr__(self, "text", one_line(self.text, _MAX_FAILURE))
        object.__setattr__(self, "fix", one_line(self.fix, _MAX_FIX))


class HostsUnreachable(LauncherError):
    """At least one host can't be reached; every host that failed is listed."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, failures: list[HostFailure]) -> None:
        super().__init__("; ".join(f"{failure.host}: {failure.text}" for failure in failures))
        self.failures = failures


class ChecksFailed(LauncherError):
    """The hosts respond, but the run would fail; one line per finding."""

    exit_code = EXIT_PREFLIGHT

    def __init__(
        self, message: str, fix: str = "", *, hosts: tuple[str, ...] = (), findings: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message, fix)
        self.hosts = hosts  # that the findings name
        self.findings = findings  # each a preflight.findings.Finding
