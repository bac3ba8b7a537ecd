"""Find the cause of a failed run among its failures, and explain it in words. Nothing here does I/O.

The first failure by time is not always the cause: a rank that raises an exception takes a second to exit, while its
peers already died of the closed connection. So a failure that looks like the consequence of another one counts only if
there is no other, and among the rest the earliest is the cause. If several ranks have the same error, chance decides
which one is reported first, so the lowest rank represents all of them. Two failures are the same failure again if they
have the same signature.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from launcher.diagnosis.collective_timeouts import explain_wait
from launcher.diagnosis.exit_codes import ENDING, describe_ending, explain_ending, explain_loss
from launcher.diagnosis.failure import Failure, FailureKind, Role
from launcher.diagnosis.signatures import AT_EXIT, Explanation, Kind, explain_lines
from launcher.diagnosis.tracebacks import (
    cut_tracebacks,
    extract_crash,
    extract_errors,
    extract_traceback,
    last_said,
    mask,
    shorten_traceback,
)

LAST_LINES = 10
SETTLE_S = 2.0  # how long a failure that looks like a consequence waits for its cause to show up

_SKEW_S = 1.0  # how far the times of two hosts' messages may differ, because of the network
_LONGEST_WAIT_S = 3600.0  # for a rank that has exited: collectives time out sooner, and later failures are unrelated
_MAX_LINE = 300
_SEARCHED_LINES = 30  # from the end of a stream; the rank survived what it printed earlier
_SEARCHED_LINES_OF_OTHERS = 5  # there may be a thousand ranks, and a line costs 0.06 ms
_ENDED_BY_US = "worker-gone"  # also printed by a rank that `launch` stops
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line \d+(?:, in (?P<function>.+))?$')


@dataclass(frozen=True, slots=True)
class Cause:
    """The failure that a run is blamed on, and what the user sees of it.

    `explanation` is None if no known line matches; the traceback and the last lines are shown anyway. `same` has the
    failures of other ranks with the same error.
    """

    failure: Failure
    traceback: tuple[str, ...]
    last_lines: tuple[str, ...]
    explanation: Explanation | None = None
    same: tuple[Failure, ...] = ()


def find_cause(
    failures: Sequence[Failure],
    ranks: Collection[int] = (),
    *,
    succeeded: Sequence[Failure] = (),
    told: Failure | None = None,
) -> Cause | None:
    """Return the cause of a failed run, or None if nothing failed.

    ranks: all ranks of the run; empty if some were started elsewhere, so that the missing ones are unknown here.
    succeeded: the ranks that exited with 0; one of them is the cause if the others only lost their connection to it.
    told: the cause that the user was shown earlier; it stays the cause if others have the same error.
    """
    if not failures:
        return None
    is_cancelled = any(failure.is_cancellation for failure in failures)
    first = min(
        failures,
        key=lambda failure: (
            failure.is_secondary or (is_cancelled and failure.may_be_cancellation), failure.after_stop, failure.at,
        ),
    )  # fmt: skip
    early = [
        success
        for success in succeeded
        if -_SKEW_S < first.at - success.at < _LONGEST_WAIT_S and success.role is Role.ERROR
    ]
    if first.role is Role.CONSEQUENCE and early:
        first = min(early, key=lambda success: (success.at, success.rank))
    alike = [first, *(failure for failure in failures if failure is not first and first.has_same_error(failure))]
    first = min(
        (failure for failure in alike if not failure.after_stop or failure is first),
        key=lambda failure: (told is None or failure.rank != told.rank, failure.rank or 0),
    )
    same = tuple({failure.rank: failure for failure in alike if failure.rank != first.rank}.values())
    lines = first.stderr.splitlines()
    found: list[str] = []
    # An exception never ends in SIGKILL, a hang or exit code 0: a traceback before one of these was handled.
    is_killed = first.signal == signal.SIGKILL and not first.is_uncaught
    if not is_killed and not first.is_early_exit and first.kind is not FailureKind.HANG:
        found = shorten_traceback(extract_traceback(first.stderr))
        lines = cut_tracebacks(lines)
    crash = extract_crash(first.stderr) if first.signal is not None else []
    # stderr comes last: where there is room for fewer lines, those that say why are kept.
    last_lines = [line.rstrip()[:_MAX_LINE] for line in last_said(first.stdout.splitlines(), LAST_LINES // 2)]
    last_lines += [line.rstrip()[:_MAX_LINE] for line in last_said(lines, LAST_LINES // 2)]
    return Cause(first, tuple(crash or found), tuple(last_lines), _explain(first, failures, ranks), same)


def _explain(first: Failure, failures: Sequence[Failure], ranks: Collection[int]) -> Explanation | None:
    """Explain why the first failure happened; if it is a consequence, what other ranks printed takes precedence."""
    if first.kind is FailureKind.CONNECTION:
        return explain_loss(first.text)
    if first.kind is FailureKind.SUPERVISOR and (known := next(explain_lines([first.text]), None)):
        return known
    if first.kind is FailureKind.HANG:  # the stacks show why
        return None
    ending = explain_ending(first.code, first.signal, is_out_of_memory=first.oom is not None)
    # Killed from outside, or exited with 0: none of its own lines can explain that.
    if first.is_early_exit or first.oom or (first.signal in (signal.SIGKILL, signal.SIGTERM) and not first.is_uncaught):
        return ending
    own = _explain_by_lines(first)
    if own is not None and own.kind is Kind.CAUSE:
        return own
    if first.is_secondary:
        own = _explain_by_others(first, failures, ranks) or own
    return own or (None if extract_traceback(first.stderr) else ending)


def _explain_by_lines(failure: Failure, count: int = _SEARCHED_LINES) -> Explanation | None:
    """Explain a failure by its Python error, or by other lines if no error does: runs survive many warnings."""
    error = extract_errors(failure.stderr)

    def explain(lines: list[str]) -> list[Explanation]:
        return [some for some in explain_lines(lines) if not (error and some.name == AT_EXIT)]

    found = explain(error)
    causes = [known for known in found if known.kind is Kind.CAUSE]
    if not causes and (not error or failure.is_secondary or failure.kind is FailureKind.TORCHRUN):
        for line in _searched_lines(failure, count):
            said = explain([line])
            if said and said[0].kind is Kind.CAUSE:
                return said[0]
            found += said
    return next(iter(causes or found), None)


def _explain_by_others(first: Failure, failures: Sequence[Failure], ranks: Collection[int]) -> Explanation | None:
    """Explain a failure by what other ranks printed, or by which rank they all waited for.

    A rank that hung may have printed why, although it ended only because `launch` stopped it.
    """
    for other in sorted(failures, key=lambda failure: failure.at):
        is_other = other is not first and other.kind is FailureKind.RANK
        said = _explain_by_lines(other, _SEARCHED_LINES_OF_OTHERS) if is_other else None
        if said is not None and said.kind is Kind.CAUSE and said.name != _ENDED_BY_US:
            return Explanation(said.name, f"{other.subject} says that {said.cause}", said.fix, said.kind)
    return explain_wait({failure.rank: failure.stderr for failure in failures if failure.rank is not None}, ranks)


def _searched_lines(failure: Failure, count: int) -> list[str]:
    """Return the last lines, the latest first, stderr before stdout."""
    streams = (failure.stderr.splitlines(), failure.stdout.splitlines())
    return [line for lines in streams for line in reversed(last_said(lines, count))]


def find_signature(cause: Cause) -> str | None:
    """Return a text that is equal for failures of the same kind, or None for one that says nothing about its reason.

    It is the known cause if there is one; otherwise the type of the exception and the innermost function of the user's
    own code; otherwise the signal or exit code. Numbers, directories, ranks, hosts and ports aren't part of it, because
    they may differ when the same thing fails again. None: a lost connection, a hang, or a rank that only lost another
    one; any failure may look like this on the host that is heard first.
    """
    failure = cause.failure
    if failure.kind in (FailureKind.CONNECTION, FailureKind.HANG) or failure.role is not Role.ERROR:
        return None
    if failure.is_early_exit:
        return "finished before the others"
    known = cause.explanation
    if known is not None and known.kind is Kind.CAUSE and known.name != ENDING:
        return known.name
    return _find_error(failure) or describe_ending(failure.code, failure.signal)


def _find_error(failure: Failure) -> str | None:
    """Return `ValueError in train.py:step`, or None without a Python error."""
    lines = shorten_traceback(extract_traceback(failure.stderr))
    if not lines or failure.signal is not None:
        return None
    error = lines[-1].partition(":")[0].strip()
    place = _PLACE.match(lines[0].strip())
    if place is None:
        return error
    file = place["file"].rpartition("/")[2]
    return f"{error} in {mask(file)}:{place['function'] or '<module>'}"
