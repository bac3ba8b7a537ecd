"""What two failures must have in common to count as the same failure again. Nothing here does I/O."""

from __future__ import annotations

import re

from launcher.diagnosis.cause import Cause
from launcher.diagnosis.exit_codes import ENDING, describe_ending
from launcher.diagnosis.failure import Failure, FailureKind, Role
from launcher.diagnosis.signatures import Kind
from launcher.diagnosis.tracebacks import extract_traceback, mask, shorten_traceback

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line \d+(?:, in (?P<function>.+))?$')


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
