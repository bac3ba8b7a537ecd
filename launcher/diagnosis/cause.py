"""The failures of a run -> its cause, in words. Nothing here does I/O.

The first failure by time is not always the cause: a rank that raises takes a second to tear down, while its peers
already died of the closed connection. So a failure that looks like the consequence of another one counts only if there
is no other, and among the rest the earliest is the cause.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from launcher.diagnosis.collective_timeouts import explain_wait
from launcher.diagnosis.exit_codes import describe_ending, explain_ending, explain_loss
from launcher.diagnosis.signatures import Explanation, Kind, explain_lines
from launcher.diagnosis.tracebacks import (
    cut_tracebacks,
    extract_crash,
    extract_errors,
    extract_traceback,
    is_stack,
    shorten_traceback,
)
from launcher.errors import EXIT_FAILED, EXIT_HANG, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE
from launcher.node.messages import TERMINATED

LAST_LINES = 10
SETTLE_S = 2.0  # how long a failure that looks like a consequence waits for its cause to show up

_MAX_LINE = 300
_SEARCHED_LINES = 30  # from the end of a stream; what stands further up was survived
_SEARCHED_LINES_OF_OTHERS = 5  # there may be a thousand ranks, and a line costs 0.06 ms
_OUT_OF_MEMORY: Mapping[str | None, str] = {
    "certain": ": out of memory (the kernel's OOM killer)",
    "probable": ": probably out of memory (the kernel's OOM killer was at work)",
}
_ENDED_BY_US = "worker-gone"  # what a rank that we stop says too


class FailureKind(Enum):
    """What it was that failed, in the word that run.json and the headline have for it."""

    RANK = "rank"  # a training process ended badly
    TORCHRUN = "torchrun"  # the torchrun of a node did, and no rank of that node is known to have
    SUPERVISOR = "supervisor"  # `launch`'s helper on a node ended or gave up, and with it the node's ranks
    CONNECTION = "connection"  # a node was lost, for any other reason
    HANG = "hang"  # nothing has ended: one rank is stuck, or all of them


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
    after_stop: bool = False  # it ended after we had asked it to
    gpu: int | None = None
    oom: str | None = None  # of a kill: whether it was the kernel for lack of memory, "certain" or "probable"

    @property
    def exit_code(self) -> int:
        """The exit code that `launch` ends with if this failure is the cause."""
        if self.kind is FailureKind.CONNECTION:
            return EXIT_UNREACHABLE
        if self.kind is FailureKind.HANG:
            return EXIT_HANG
        if self.signal is not None:
            return EXIT_SIGNAL_BASE + self.signal
        return self.code or EXIT_FAILED

    @property
    def is_secondary(self) -> bool:
        """Whether it looks like the consequence of another failure."""
        if self.after_stop or self.signal == signal.SIGTERM:
            return True
        if self.kind in (FailureKind.CONNECTION, FailureKind.HANG) or self.signal == signal.SIGKILL or self.oom:
            return False
        error = extract_traceback(self.stderr)[-1:]
        if not error or self.signal is not None:
            error += _last_said(self.stderr.splitlines(), 3)
        return _says_consequence(error)

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
        return f"{self.subject} failed first ({self.ending.partition(' (')[0] if self.oom else self.ending})"

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        if self.text:
            return self.text
        if self.signal is None and self.code is None:
            return "exit code unknown"
        return describe_ending(self.code, self.signal) + _OUT_OF_MEMORY.get(self.oom, "")


@dataclass(frozen=True, slots=True)
class Cause:
    """The failure that the end of a run is blamed on, and what the user is shown of it.

    `explanation` is None where nothing known matches; the traceback and last lines are shown all the same.
    """

    failure: Failure
    traceback: tuple[str, ...]
    last_lines: tuple[str, ...]
    explanation: Explanation | None = None


def find_cause(failures: Sequence[Failure], ranks: Collection[int] = ()) -> Cause | None:
    """Return the cause of a failed run, or None where nothing failed.

    ranks: all ranks of the run; empty if some were started elsewhere, so that nobody knows here which ones are missing.
    """
    if not failures:
        return None
    first = min(failures, key=lambda failure: (failure.is_secondary, failure.at))
    lines = first.stderr.splitlines()
    found: list[str] = []
    # No exception ends in SIGKILL or in a hang: a traceback before it was handled.
    if first.signal != signal.SIGKILL and first.kind is not FailureKind.HANG:
        found = shorten_traceback(extract_traceback(first.stderr))
        lines = cut_tracebacks(lines)
    crash = extract_crash(first.stderr) if first.signal is not None else []
    last_lines = [line.rstrip()[:_MAX_LINE] for line in _last_said(lines, LAST_LINES // 2)]
    last_lines += [line.rstrip()[:_MAX_LINE] for line in _last_said(first.stdout.splitlines(), LAST_LINES // 2)]
    return Cause(first, tuple(crash or found), tuple(last_lines), _explain(first, failures, ranks))


def _explain(first: Failure, failures: Sequence[Failure], ranks: Collection[int]) -> Explanation | None:
    """Say why the first failure happened; where it is a consequence, what the others say goes before."""
    if first.kind is FailureKind.CONNECTION:
        return explain_loss(first.text)
    if first.kind is FailureKind.HANG:  # the stacks tell why
        return None
    ending = explain_ending(first.code, first.signal, is_out_of_memory=first.oom is not None)
    if first.oom or first.signal in (signal.SIGKILL, signal.SIGTERM):  # from outside: no line of its own can tell
        return ending
    own = _explain_by_lines(first)
    if own is not None and own.kind is Kind.CAUSE:
        return own
    if first.is_secondary:
        is_spread = len({failure.node_rank for failure in failures}) > 1
        own = _explain_by_others(first, failures, ranks) or (_find_hint(first) if is_spread else None) or own
    return own or (None if extract_traceback(first.stderr) else ending)


def _explain_by_lines(failure: Failure, count: int = _SEARCHED_LINES) -> Explanation | None:
    """Explain a failure by its Python error, by other lines only if no error tells: runs survive many warnings."""
    error = extract_errors(failure.stderr)
    found = [known for known in explain_lines(error) if known.kind in (Kind.CAUSE, Kind.CONSEQUENCE)]
    causes = [known for known in found if known.kind is Kind.CAUSE]
    if not causes and (not error or failure.is_secondary or failure.kind is FailureKind.TORCHRUN):
        for line in _searched_lines(failure, count):
            said = [known for known in explain_lines([line]) if known.kind in (Kind.CAUSE, Kind.CONSEQUENCE)]
            if said and said[0].kind is Kind.CAUSE:
                return said[0]
            found += said
    return next(iter(causes or found), None)


def _explain_by_others(first: Failure, failures: Sequence[Failure], ranks: Collection[int]) -> Explanation | None:
    """Explain a failure by what other ranks said, or by which rank they all waited for.

    A rank that hung may have said why, and ended only because `launch` stopped it.
    """
    for other in sorted(failures, key=lambda failure: failure.at):
        is_other = other is not first and other.kind is FailureKind.RANK
        said = _explain_by_lines(other, _SEARCHED_LINES_OF_OTHERS) if is_other else None
        if said is not None and said.kind is Kind.CAUSE and said.name != _ENDED_BY_US:
            return Explanation(said.name, f"{other.subject} says that {said.cause}", said.fix, said.kind)
    return explain_wait({failure.rank: failure.stderr for failure in failures if failure.rank is not None}, ranks)


def _find_hint(failure: Failure) -> Explanation | None:
    lines = [*extract_errors(failure.stderr), *_searched_lines(failure, _SEARCHED_LINES)]
    return next((known for known in explain_lines(lines) if known.kind is Kind.HINT), None)


def _says_consequence(lines: Iterable[str]) -> bool:
    for line in lines:
        for known in explain_lines([line]):
            if known.kind in (Kind.CAUSE, Kind.CONSEQUENCE):
                return known.kind is Kind.CONSEQUENCE
    return False


def _searched_lines(failure: Failure, count: int) -> list[str]:
    """Return the last lines, the latest first, stderr before stdout."""
    streams = (failure.stderr.splitlines(), failure.stdout.splitlines())
    return [line for lines in streams for line in reversed(_last_said(lines, count))]


def _last_said(lines: Sequence[str], count: int) -> list[str]:
    """Return the last lines without those of native stacks, which come after an error and would push it out."""
    return list(islice((line for line in reversed(lines) if not is_stack(line)), count))[::-1]
