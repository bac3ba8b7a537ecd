"""What an attempt's result, or the error that kept it from starting, means for what follows. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from launcher.diagnosis.cause import Cause, find_signature
from launcher.diagnosis.failure import FailureKind, Role
from launcher.errors import HostFailureKind, LauncherError, PreflightError, UnreachableError, UsageError
from launcher.runs.next_attempt import GpusInUseError
from launcher.runs.policy import Ending, Outcome
from launcher.runs.result import Result

PROGRESS_S = 600.0  # ranks that have printed for so long count as progress, if nothing shows whether they saved

# By the name of the known cause (diagnosis/signatures.py).
_KNOWN = {
    **dict.fromkeys(
        ("arguments", "local-rank-unknown", "local-rank-wanted", "script-missing", "cannot-run", "command-missing"),
        Outcome.INPUT,
    ),
    "module-missing": Outcome.IMPORT,
    **dict.fromkeys(("disk-full", "save-cut-short"), Outcome.DISK),
    **dict.fromkeys(("gpu-fell-off", "gpu-ecc", "gpu-xid", "fabric-manager", "driver-state"), Outcome.HOST),
    # Slurm has ended the job: its hosts are no longer ours.
    **dict.fromkeys(
        ("slurm-time", "slurm-preemption", "slurm-node", "slurm-cancelled", "slurm-aborted"), Outcome.STOPPED
    ),
}
_OTHERS_MEMORY = "had a GPU filled by another program"
# How all hosts fail at once if the network of this machine does.
_NETWORK = (
    HostFailureKind.NAME_UNKNOWN, HostFailureKind.TIMED_OUT, HostFailureKind.NO_ROUTE, HostFailureKind.NO_WAY,
    HostFailureKind.CUT_OFF, HostFailureKind.LOST, HostFailureKind.CONNECTION, HostFailureKind.SILENT,
    HostFailureKind.STANDSTILL,
)  # fmt: skip
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_EXIT_ARGUMENTS = 2  # of argparse and click


def judge_result(result: Result, hosts: Collection[str]) -> Ending:
    """Return what the end of an attempt on these hosts that has failed means."""
    outcome, suspects = _find_outcome(result)
    has_output = result.output_s is not None
    has_printed = (result.output_s or 0.0) > PROGRESS_S and outcome not in (Outcome.HANG, Outcome.CONSEQUENCE)
    return Ending(
        outcome,
        suspects,
        None if result.cause is None else find_signature(result.cause),
        is_everywhere=set(suspects) >= set(hosts),
        has_trained=has_output and outcome is not Outcome.IMPORT,
        has_progress=has_printed if result.has_saved is None else result.has_saved,
        has_left=any(result.census.left.values()),
    )


def judge_refusal(error: LauncherError, hosts: Collection[str], here: Collection[str] = ()) -> Ending:
    """Return what it means that a later attempt could not start; here: which of these hosts are this machine."""
    refused = Ending(Outcome.ERROR, is_refused=True)
    if isinstance(error, UsageError):
        return replace(refused, outcome=Outcome.INPUT)
    if isinstance(error, UnreachableError):
        suspects = tuple(dict.fromkeys(failure.host for failure in error.failures))
        if _are_all(suspects, set(hosts).difference(here)):
            is_network = all(failure.kind in _NETWORK for failure in error.failures)
            return replace(refused, outcome=Outcome.NETWORK) if is_network else refused
        return replace(refused, outcome=Outcome.HOST, suspects=suspects)
    if isinstance(error, PreflightError | GpusInUseError) and not _are_all(error.hosts, hosts):
        return replace(refused, outcome=Outcome.HOST, suspects=error.hosts)
    return refused


def _are_all(suspects: Collection[str], hosts: Collection[str]) -> bool:
    """Return whether these are all of several hosts: then what they have in common is to blame, and none of them."""
    return len(hosts) > 1 and set(suspects) >= set(hosts)


def find_incidents(
    cause: Cause | None, refusal: LauncherError | None, ending: Ending | None, *, has_one_other: bool = False
) -> dict[str, str]:
    """Return, for each host that is to blame for the end of an attempt, what went wrong with it.

    ending: None if the attempt succeeded. A host is not to blame for what the user's program does. has_one_other:
    the run is on this machine and one other host; if that is lost, nobody knows whose network failed.
    """
    if ending is None or ending.outcome is not Outcome.HOST:
        known = cause.explanation.name if cause is not None and cause.explanation is not None else ""
        return {cause.failure.host: _OTHERS_MEMORY} if cause is not None and known == "gpu-memory-shared" else {}
    is_cut = False
    if isinstance(refusal, GpusInUseError):
        what = "kept GPU memory in use"
    elif refusal is not None:
        is_cut = isinstance(refusal, UnreachableError)
        what = "lost" if is_cut else "failed its checks"
    else:
        is_lost = cause is not None and cause.failure.kind in (FailureKind.CONNECTION, FailureKind.SUPERVISOR)
        what = "lost" if is_lost else "had a broken GPU"
        is_cut = cause is not None and cause.failure.kind is FailureKind.CONNECTION
    if is_cut and has_one_other:
        return {}
    return dict.fromkeys(ending.suspects, what)


def _find_outcome(result: Result) -> tuple[Outcome, tuple[str, ...]]:
    cause = result.cause
    if cause is None or result.interrupted_by is not None:
        return Outcome.STOPPED, ()
    if result.has_lost_port:
        return Outcome.PORT, ()
    if result.is_network:
        return Outcome.NETWORK, ()
    failure = cause.failure
    if failure.kind is FailureKind.HANG:
        return Outcome.HANG, (failure.host,) if failure.rank is not None else ()
    if failure.role is Role.CONSEQUENCE:
        return Outcome.CONSEQUENCE, (failure.host,)  # where it was noticed first, which blames nobody
    suspects = tuple(dict.fromkeys(each.host for each in (failure, *cause.same)))
    if failure.kind in (FailureKind.CONNECTION, FailureKind.SUPERVISOR):
        return Outcome.HOST, suspects
    return _find_known(cause), suspects


def _find_known(cause: Cause) -> Outcome:
    known = cause.explanation.name if cause.explanation is not None else None
    if known in _KNOWN:
        return _KNOWN[known]
    error = cause.traceback[-1].partition(":")[0] if cause.traceback else ""
    is_usage = cause.failure.code == _EXIT_ARGUMENTS and "usage: " in cause.failure.stderr
    return Outcome.INPUT if error in _SYNTAX or is_usage else Outcome.ERROR
