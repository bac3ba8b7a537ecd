"""Every error that a user can meet, and the exit code that belongs to it.

    LauncherError                 exit code 1
      UsageError                  2    a wrong option, file or value
        HostfileError             2    the same, with file and line
      UnreachableError            69   a host can't be reached (EX_UNAVAILABLE of sysexits.h)
      PreflightError              70   hosts answer but can't train together (EX_SOFTWARE)

The library raises; `launcher.cli` alone prints and exits.

From what went wrong to the screen. A LauncherError ends the command; what goes wrong on one host of many must not, so
it is a value. There are five such types, and none of them prints or exits:

    HostFailure    here                     why one host takes no part
    Finding        preflight.findings       what the checks say of hosts that answer
    Failure        diagnosis.failure        what ended a run, or a part of it, in a way it should not
    Explanation    diagnosis.signatures     why something failed and what to do, in words
    Cause          diagnosis.cause          the first Failure of a run, with its last lines and its Explanation

A transport that does not reach a host raises TransportError, which carries a HostFailure. `session.connection` catches
it, makes a HostFailure of whatever else happens to a connection, and raises nothing further; `session.node_state` makes
one where a supervisor reports that it has failed.

- Before a run starts, `runs.run` raises one UnreachableError for all HostFailures, which `hosts.unreachable` words, or
  one PreflightError for all Findings that are problems; it prints the warnings, and goes on. `launch check` prints
  both, and exits with the same codes.
- Once it has started, `runs.failures` makes a Failure of each process that ended badly and of each HostFailure.
  `find_cause` picks the one that came first and explains it, `runs.report` puts that Cause into words, and the run's
  exit code is `Cause.failure.exit_code`.
- `launch exec` and `launch clean` have no Cause: they print their HostFailures by `hosts.unreachable`, and exit with
  69 unless something else went wrong as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from launcher.escapes import one_line

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69
EXIT_PREFLIGHT = 70
EXIT_HANG = 124  # as timeout(1) ends
EXIT_SIGNAL_BASE = 128

_MAX_FAILURE = 500  # characters of its text


class LauncherError(Exception):
    """One clear line (where, what, value) and the remedy, printed as `fix:`."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(LauncherError):
    """What the user asked for makes no sense; nothing was started."""

    exit_code = EXIT_USAGE


class HostfileError(UsageError):
    """A line of a hostfile (or of --hosts) can't be understood."""

    def __init__(self, source: str, line: int | None, message: str, fix: str = "") -> None:
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {message}", fix)
        self.source = source
        self.line = line


class HostFailureKind(str, Enum):
    """In which way a host failed, in words that never change with the details: `launch check --json` prints them.

    The code compares members; a member is a string only so that JSON writes its value.
    """

    # The way to its sshd.
    NAME_UNKNOWN = "name unknown"  # its name has no address
    REFUSED = "refused"  # nothing listens on its port
    TIMED_OUT = "timed out"  # nobody answers
    NO_ROUTE = "no route"  # the network knows no way to it
    NO_WAY = "no way"  # its jump host can't reach it
    CUT_OFF = "cut off"  # its ProxyCommand ended
    # Its sshd, before and during the login.
    NO_SSH = "no ssh"  # what answers is no SSH server
    DROPPED = "dropped"  # sshd hung up before its banner, as it does at random beyond MaxStartups
    SLOW_LOGIN = "slow login"  # it answers, but did not finish the login in time
    LOST = "lost"  # the connection ended during the login
    HOST_KEY_UNKNOWN = "host key unknown"
    HOST_KEY_CHANGED = "host key changed"
    HOST_KEY_REVOKED = "host key revoked"
    HOST_KEY_UNRECORDED = "host key unrecorded"  # it is new and accepted, but known_hosts can't be written
    KEY_ENCRYPTED = "key encrypted"  # the user's key wants a passphrase that nobody has given
    LOGIN_REFUSED = "login refused"
    SSH = "ssh"  # anything else, in the words of the SSH client
    # Programs of this machine that lead to the hosts.
    PDSH = "pdsh"  # it can't be started
    SLURM = "slurm"  # srun can't be started or has ended, or Slurm did not start the step or has ended it
    THREADS = "threads"  # this machine can't start another thread
    CONFIGURATION = "configuration"  # a LauncherError that was met while connecting, such as a broken ssh_config
    # Starting the supervisor, after the login.
    SHELL = "shell"  # its login shell waits for input, prints without end, or ended before the supervisor was there
    NO_PYTHON = "no python"  # none there is new enough for the supervisor
    NOT_LINUX = "not linux"  # the supervisor needs Linux
    CLOSED = "closed"  # the launch ended before it was reached
    # The supervisor, once it has answered.
    CONNECTION = "connection"  # the connection ended
    SILENT = "silent"  # no heartbeat came for too long
    STANDSTILL = "standstill"  # this machine stood still for so long that the node has ended the run
    PROTOCOL = "protocol"  # it sent something that is no message, or that nobody asked for
    FACTS = "facts"  # what it says of itself makes no sense
    SUPERVISOR = "supervisor"  # supervisor or guardian has ended, or could not do what it was asked


@dataclass(frozen=True, slots=True)
class HostFailure:
    """Why one host takes no part: a kind for programs, one line of text, and the remedy, if there is one.

    The text never holds a newline or another control character, whoever wrote it, and is cut at 500 characters.
    """

    host: str  # its name as the user wrote it; of a jump host, as ssh_config has it
    kind: HostFailureKind
    text: str
    fix: str = ""
    address: str = ""  # where it was looked for, which text and fix may name

    def __post_init__(self) -> None:
        """Some of the words may be the host's own, or of whoever answered in its place."""
        object.__setattr__(self, "text", one_line(self.text, _MAX_FAILURE))


class UnreachableError(LauncherError):
    """At least one host can't be reached; every host that failed is listed."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, failures: list[HostFailure]) -> None:
        super().__init__("; ".join(f"{failure.host}: {failure.text}" for failure in failures))
        self.failures = failures


class PreflightError(LauncherError):
    """The hosts answer, but the plan would be wrong; one line per finding."""

    exit_code = EXIT_PREFLIGHT
