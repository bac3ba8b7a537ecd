"""One thing that failed in a run, and what it says of itself. Nothing here does I/O.

What a rank says goes before how it was ended: one that has raised takes a second to tear down, and may get the SIGTERM
that ends a run meanwhile. So a traceback that is the last word of a rank counts, unless it was written long before.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from launcher.diagnosis.exit_codes import describe_ending
from launcher.diagnosis.signatures import Kind, explain_lines
from launcher.diagnosis.tracebacks import ends_in_traceback, extract_traceback, is_same_error, last_said, mask
from launcher.errors import EXIT_FAILED, EXIT_HANG, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE
from launcher.node.messages import TERMINATED

_RECENT_S = 10.0  # a traceback that was written longer before the end was survived
_OUT_OF_MEMORY: Mapping[str | None, str] = {
    "certain": ": out of memory (the kernel's OOM killer)",
    "probable": ": probably out of memory (the kernel's OOM killer was at work)",
}
# How an exception names the SIGTERM that was answered with it.
_NAMES_STOP = re.compile(r"SIGTERM|SIGINT|KeyboardInterrupt|SystemExit|signal:? \(?15\b|signal: Terminated")


class FailureKind(Enum):
    """What it was that failed, in the word that run.json and the headline have for it."""

    RANK = "rank"  # a training process ended badly
    TORCHRUN = "torchrun"  # the torchrun of a node did, and no rank of that node is known to have
    SUPERVISOR = "supervisor"  # `launch`'s helper on a node ended or gave up, and with it the node's ranks
    CONNECTION = "connection"  # a node was lost, for any other reason
    HANG = "hang"  # nothing has ended: one rank is stuck, or all of them


class Role(Enum):
    """What a failure is to the run, by what the process said and by how it ended."""

    ERROR = "error"  # it failed, or ended, by itself
    CONSEQUENCE = "consequence"  # it lost another rank, or waited for one in vain
    STOPPED = "stopped"  # it was asked to end, and said nothing of its own


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that failed in a run: where, when, how it ended, and the last that it printed.

    `launcher.errors` tells what else there is for things that go wrong, and what becomes of each on the way to the
    screen.
    """

    host: str
    node_rank: int
    kind: FailureKind
    at: float  # wall-clock seconds of the launcher
    rank: int | None = None  # of a rank or a hang; None where it is a hang of all ranks
    local_rank: int | None = None
    code: int | None = None
    signal: int | None = None
    text: str = ""  # where there is no process: why
    stdout: str = ""  # the last of it
    stderr: str = ""
    after_stop: bool = False  # it ended after `launch` had asked it to
    silent_s: float = 0.0  # from the last that it wrote on stderr to its end, or to the stop; below 0: it wrote later
    gpu: int | None = None
    oom: str | None = None  # of a kill: whether it was the kernel for lack of memory, "certain" or "probable"

    @property
    def is_early_exit(self) -> bool:
        """Whether it is a rank that ended well, and is to blame since others still needed it."""
        return self.kind is FailureKind.RANK and self.code == 0

    @property
    def exit_code(self) -> int:
        """The exit code that `launch` ends with if this failure is the cause."""
        if self.kind is FailureKind.CONNECTION:
            return EXIT_UNREACHABLE
        if self.kind is FailureKind.HANG:
            return EXIT_HANG
        if self.signal is not None and not self.is_uncaught:
            return EXIT_SIGNAL_BASE + self.signal
        return self.code or EXIT_FAILED

    @property
    def role(self) -> Role:
        """What it is to the run."""
        if self._was_asked:
            if not (self.after_stop and self._spoke_last and ends_in_traceback(self.stderr)):
                return Role.STOPPED  # somebody else's SIGTERM is told as it is
            error = extract_traceback(self.stderr)[-1:]
            if any(map(_NAMES_STOP.search, error)):
                return Role.STOPPED
        elif self.kind in (FailureKind.CONNECTION, FailureKind.HANG) or self.signal == signal.SIGKILL or self.oom:
            return Role.ERROR
        else:
            error = extract_traceback(self.stderr)[-1:]
            if not error or self.signal is not None:
                error += last_said(self.stderr.splitlines(), 3)
        return Role.CONSEQUENCE if _says_consequence(error) else Role.ERROR

    @property
    def is_secondary(self) -> bool:
        """Whether another failure explains it, or it may be the answer to the stop."""
        return self.role is not Role.ERROR or (self.after_stop and self.silent_s < 0)

    @property
    def is_uncaught(self) -> bool:
        """Whether it was ended by a signal while it went down with an exception, so that no exit code tells."""
        return self._was_asked and self.signal is not None and self.role is not Role.STOPPED

    @property
    def _was_asked(self) -> bool:
        return self.after_stop or self.signal == signal.SIGTERM

    @property
    def _spoke_last(self) -> bool:
        """Whether the last of its stderr comes from its end, and not from an error that it has survived."""
        return self.kind is FailureKind.RANK and self.silent_s <= _RECENT_S

    def has_same_error(self, other: Failure) -> bool:
        """Tell whether another rank failed in the same way: by the same exception but for numbers, or the same end."""
        if self.kind is not FailureKind.RANK or other.kind is not FailureKind.RANK:
            return False
        if any(failure._was_asked and not failure._spoke_last for failure in (self, other)):
            return False
        if extract_traceback(self.stderr) or extract_traceback(other.stderr):
            return is_same_error(self.stderr, other.stderr)
        said, too = (mask("".join(last_said(failure.stderr.splitlines(), 1))) for failure in (self, other))
        is_same_end = (self.code, self.signal, self.oom) == (other.code, other.signal, other.oom) and said == too
        was_asked = self._was_asked or other._was_asked  # then all may end alike, unless they say more than that
        return is_same_end and bool(said or self.signal) and not (was_asked and (self.signal or not said))

    @property
    def is_final(self) -> bool:
        """Whether there is no use in waiting for another failure that says more.

        Slurm ends a job by telling supervisors, ranks and `launch` at the same time, so a supervisor that was told to
        end may be the first sign of a cause that is still to come.
        """
        return not self.is_secondary and self.text != TERMINATED

    @property
    def subject(self) -> str:
        """Who failed, in a few words."""
        if self.kind is FailureKind.HANG and self.rank is None:
            return "all ranks"
        if self.kind in (FailureKind.RANK, FailureKind.HANG):
            return f"{self.host} rank {self.rank}"
        return f"{self.host} {self.kind.value}"

    @property
    def headline(self) -> str:
        """Who failed first and how, in one line."""
        if self.kind is FailureKind.CONNECTION:
            return f"lost {self.host} ({self.ending})"
        if self.kind is FailureKind.HANG:
            return self.ending
        if self.is_early_exit:
            return f"{self.subject} {self.ending}"
        return f"{self.subject} failed first ({self.ending.partition(' (')[0] if self.oom else self.ending})"

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        if self.text:
            return self.text
        if self.is_early_exit:
            return "finished before the others (exit code 0)"
        if self.is_uncaught:
            return "uncaught exception"
        if self.signal is None and self.code is None:
            return "exit code unknown"
        return describe_ending(self.code, self.signal) + _OUT_OF_MEMORY.get(self.oom, "")


def _says_consequence(lines: Iterable[str]) -> bool:
    for line in lines:
        for known in explain_lines([line]):
            if known.kind in (Kind.CAUSE, Kind.CONSEQUENCE):
                return known.kind is Kind.CONSEQUENCE
    return False
