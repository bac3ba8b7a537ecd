"""Every error that a user can meet, and the exit code that belongs to it.

    LauncherError                 exit code 1
      UsageError                  2    a wrong option, file or value
        HostfileError             2    the same, with file and line
      UnreachableError            69   a host can't be reached (EX_UNAVAILABLE of sysexits.h)
      PreflightError              70   hosts answer but can't train together (EX_SOFTWARE)

The library raises; `launcher.cli` alone prints and exits.
What happens to one host of many is a value, `HostFailure`, and is never raised past the connections.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.escapes import one_line

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69
EXIT_PREFLIGHT = 70
EXIT_HANG = 124  # as timeout(1) ends
EXIT_SIGNAL_BASE = 128

_MAX_FAILURE = 500  # characters of its text


class LauncherError(Exception):
    """One clear line (where, what, value) and a hint that names the remedy."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LauncherError):
    """What the user asked for makes no sense; nothing was started."""

    exit_code = EXIT_USAGE


class HostfileError(UsageError):
    """A line of a hostfile (or of --hosts) can't be understood."""

    def __init__(self, source: str, line: int | None, message: str, hint: str = "") -> None:
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {message}", hint)
        self.source = source
        self.line = line


@dataclass(frozen=True, slots=True)
class HostFailure:
    """Why one host takes no part: a class of failure, one line of text, and what to do."""

    host: str
    kind: str
    text: str
    hint: str = ""
    address: str = ""  # where it was looked for, which text and hint may name

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
