"""Failure: one thing that failed in a run, and its role in the run. Nothing here does I/O.

What a rank printed takes precedence over how it ended: a rank that raised an exception takes a second to exit, and may
get the run's SIGTERM meanwhile. So a traceback at the end of its output counts, unless it was printed long before.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from launcher.diagnosis.exit_codes import CANCELLED, SRUN_KILLED, describe_ending
from launcher.diagnosis.signatures import Kind, explain_lines
from launcher.diagnosis.tracebacks import ends_in_traceback, extract_traceback, is_same_error, last_said, mask
from launcher.errors import EXIT_FAILED, EXIT_HANG, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE
from launcher.node.messages import TERMINATED

_RECENT_S = 10.0  # the rank survived a traceback that it printed longer before its end
_OUT_OF_MEMORY = ": probably out of memory (the kernel's OOM killer was at work)"
# How an exception names the SIGTERM that it responds to.
_NAMES_STOP = re.compile(r"SIGTERM|SIGINT|KeyboardInterrupt|SystemExit|signal:? \(?15\b|signal: Terminated")


class FailureKind(Enum):
    """What failed; the value is the word for it in run.json."""

    RANK = "rank"  # a training process failed
    TORCHRUN = "torchrun"  # the torchrun of a host failed, and no rank of that host is known to have failed
    SUPERVISOR = "supervisor"  # `launch`'s helper on a host ended or gave up, and the host's ranks with it
    CONNECTION = "connection"  # a host was lost, for any other reason
    HANG = "hang"  # nothing has ended: one rank is stuck, or all of them


class Role(Enum):
    """What a failure means for the run, judged by what the process printed and how it ended."""

    ERROR = "error"  # it failed or exited by itself
    CONSEQUENCE = "consequence"  # it lost another rank, or waited for one that never came
    STOPPED = "stopped"  # it was asked to stop, and printed no error of its own


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that failed in a run: where, when, how it ended, and its last output.

    `launcher.errors` lists the other types for things that go wrong, and describes how each reaches the screen.
    """

    host: str
    node_rank: int
    kind: FailureKind
    at: float  # wall-clock seconds on the launch host
    rank: int | None = None  # of a rank or a hang; None for a hang of all ranks
    local_rank: int | None = None
    code: int | None = None
    signal: int | None = None
    text: str = ""  # the reason, if there is no process
    stdout: str = ""  # the end of it
    stderr: str = ""
    after_stop: bool = False  # it ended after its host had begun to stop the run
    silent_s: float = 0.0  # from its last line on stderr to its end or to the stop; below 0: it wrote after that
    gpu: int | None = None
    oom: str | None = None  # for a SIGKILL: "probable" if the kernel's OOM killer has sent it
    in_slurm_step: bool = False  # Slurm could have ended it

    @property
    def is_early_exit(self) -> bool:
        """Whether it is a rank that exited with 0 while others still needed it, so that it is to blame."""
        return self.kind is FailureKind.RANK and self.code == 0

    @property
    def exit_code(self) -> int:
        """The exit code of `launch` if this failure is the cause."""
        if self.kind is FailureKind.CONNECTION:
            return EXIT_UNREACHABLE
        if self.kind is FailureKind.HANG:
            return EXIT_HANG
        if self.signal is not None and not self.is_uncaught:
            return EXIT_SIGNAL_BASE + self.signal
        return self.code or EXIT_FAILED

    @property
    def traceback(self) -> list[str]:
        """The lines of the last Python traceback that it printed; empty without one."""
        return extract_traceback(self.stderr)

    @property
    def role(self) -> Role:
        """What the failure means for the run."""
        if self._was_asked:
            if not (self.after_stop and self._spoke_last and ends_in_traceback(self.stderr)):
                return Role.STOPPED  # a SIGTERM from elsewhere is reported as such
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
        """Whether another failure explains this one, or the stop may have caused it."""
        return self.role is not Role.ERROR or (self.after_stop and self.silent_s < 0)

    @property
    def may_be_cancellation(self) -> bool:
        """Whether Slurm may have killed this rank or helper first, of all that it kills when it ends a step."""
        is_killed = self.signal == signal.SIGKILL or self.kind is FailureKind.SUPERVISOR
        return self.in_slurm_step and is_killed and not self.oom

    @property
    def is_cancellation(self) -> bool:
        """Whether Slurm has ended the step: it has said so, or srun was killed."""
        return self.kind is FailureKind.CONNECTION and any(text in self.text for text in (CANCELLED, SRUN_KILLED))

    @property
    def is_terminated(self) -> bool:
        """Whether it was ended by SIGTERM, or exited as shells and trainers do that handle one."""
        return self.signal == signal.SIGTERM or self.code == EXIT_SIGNAL_BASE + signal.SIGTERM

    @property
    def is_uncaught(self) -> bool:
        """Whether a signal ended it while it was exiting with an exception, so that its exit code is unknown."""
        return self._was_asked and self.signal is not None and self.role is not Role.STOPPED

    @property
    def _was_asked(self) -> bool:
        return self.after_stop or self.is_terminated

    @property
    def _spoke_last(self) -> bool:
        """Whether the end of its stderr comes from its end, and not from an error that it survived."""
        return self.kind is FailureKind.RANK and self.silent_s <= _RECENT_S

    def has_same_error(self, other: Failure) -> bool:
        """Tell whether another rank failed the same way: by the same exception except for numbers, or the same end."""
        if self.kind is not FailureKind.RANK or other.kind is not FailureKind.RANK:
            return False
        if any(failure._was_asked and not failure._spoke_last for failure in (self, other)):
            return False
        if extract_traceback(self.stderr) or extract_traceback(other.stderr):
            return is_same_error(self.stderr, other.stderr)
        said, too = (mask("".join(last_said(failure.stderr.splitlines(), 1))) for failure in (self, other))
        is_same_end = (self.code, self.signal, self.oom) == (other.code, other.signal, other.oom) and said == too
        was_asked = self._was_asked or other._was_asked  # then all may end alike, unless they print more than that
        return is_same_end and bool(said or self.signal) and not (was_asked and (self.signal or not said))

    @property
    def is_final(self) -> bool:
        """Whether no later failure could explain more, so that waiting for one is useless.

        Slurm ends a job by signalling supervisors, ranks and `launch` at the same time, so a supervisor that was told
        to end, or a rank that was killed, may be the first sign of a cause that is still to come.
        """
        return not self.is_secondary and not self.may_be_cancellation and self.text != TERMINATED

    @property
    def subject(self) -> str:
        """Who failed, in a few words."""
        if self.kind is FailureKind.HANG and self.rank is None:
            return "all ranks"
        if self.kind in (FailureKind.RANK, FailureKind.HANG):
            return f"{self.host} rank {self.rank}"
        return f"{self.host} {'helper' if self.kind is FailureKind.SUPERVISOR else self.kind.value}"

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
        """How the process or connection ended, in a few words."""
        if self.text:
            return self.text
        if self.is_early_exit:
            return "finished before the others (exit code 0)"
        if self.is_uncaught:
            return "uncaught exception"
        if self.signal is None and self.code is None:
            return "exit code unknown"
        return describe_ending(self.code, self.signal) + (_OUT_OF_MEMORY if self.oom else "")


def _says_consequence(lines: Iterable[str]) -> bool:
    for line in lines:
        for known in explain_lines([line]):
            return known.kind is Kind.CONSEQUENCE
    return False
