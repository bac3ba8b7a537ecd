"""Judge a run: from what the nodes have reported, whether it has failed, and why, and what should follow from that.

What each rank and node did becomes Failures, each with the last lines of its process: here a node's HostFailure becomes
a Failure of the run; `launcher.errors` describes all steps up to the screen. How an attempt ended, or the error that
kept it from starting, then becomes an Ending, by which `policy` decides.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.clock import wall_clock
from launcher.diagnosis.cause import Cause, find_cause, find_signature
from launcher.diagnosis.failure import Failure, FailureKind, Role
from launcher.diagnosis.tracebacks import extract_traceback, gather_traceback
from launcher.errors import ChecksFailed, HostFailure, HostFailureKind, HostsUnreachable, LauncherError, UsageError
from launcher.escapes import without_controls
from launcher.job.job import Job
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_output import NodeOutput
from launcher.runs.policy import Ending, Outcome
from launcher.runs.records import Result
from launcher.runs.run_json import Incident
from launcher.session.connection import Event
from launcher.session.node_state import NodeState
from launcher.session.session import Session

_EARLY_S = 60.0
_MOST_FAILED = 100  # ranks in a Result: a thousand with the same error say no more


@dataclass(slots=True)
class Judge:
    """What is known about a run at the moment; each call looks again, since more may have been reported."""

    session: Session
    plan: LaunchPlan
    outputs: Sequence[NodeOutput]
    knows_all_ranks: bool  # or other launchers have started some of them
    planned_at: float  # wall-clock: the ranks are started then
    stopped_at: float | None = None  # wall-clock: what ends later was stopped by `launch`

    def failures(self) -> list[Failure]:
        """Return what has failed so far, on all nodes."""
        found = [failure for node in self._nodes() for failure in node.failures()]
        return found if self.stopped_at is None else [_mark(failure, self.stopped_at) for failure in found]

    def _nodes(self) -> Iterator[_Node]:
        for index, node in enumerate(self.plan.nodes):
            yield _Node(index, node, self.session.states[index], self.outputs[index], self.session)

    def has_final(self) -> bool:
        """Return whether there is a failure that is not the consequence of another one."""
        return any(failure.is_final for failure in self.failures())

    def has_failed_early(self) -> bool:
        """Return whether a rank has raised so early that there is nothing to save and the others may raise the same."""
        if wall_clock() - self.planned_at > _EARLY_S:
            return False
        return any(failure.is_final and extract_traceback(failure.stderr) for failure in self.failures())

    def has_no_rank(self) -> bool:
        """Return whether all ranks have ended."""
        return all(
            state.ended is not None or len(state.exits) == node.nproc
            for node, state in zip(self.plan.nodes, self.session.states, strict=True)
        )

    def cause(self, *, hang: Failure | None = None, told: Failure | None = None) -> Cause | None:
        """Return why the run failed, or None if it did not.

        hang: a hang, which no process reports; told: the failure that was printed as the first. It stays a failure,
        whatever its node reports later; but a rank that succeeded is to blame only while no other one is.
        """
        known = [failure for failure in (hang, told) if failure is not None and not failure.is_early_exit]
        return self._find_cause([*self.failures(), *known], told)

    def cause_before(self, number: int, hang: Failure | None) -> Cause | None:
        """Return why the run had failed before a signal came to `launch`, or None."""
        failures = self.failures()
        if number == signal.SIGTERM and any(
            each.is_terminated or each.text == messages.TERMINATED for each in failures
        ):
            # Slurm stops supervisors, ranks and `launch` together: what follows from that is no cause.
            failures = [failure for failure in failures if failure.is_final]
        return self._find_cause(failures or ([hang] if hang is not None else []), None)

    def _find_cause(self, failures: Sequence[Failure], told: Failure | None) -> Cause | None:
        ranks = range(self.plan.world_size if self.knows_all_ranks else 0)
        # If all others only lost a rank, one of those that exited with 0 is the cause.
        succeeded = [success for node in self._nodes() for success in node.successes()]
        return find_cause(failures, ranks, succeeded=succeeded, told=told)

    def find_failed(self, cause: Cause) -> tuple[Failure, ...]:
        """Return the ranks that failed by themselves, that of the cause first; of very many, the lowest ones."""
        own = [failure for failure in self.failures() if failure.role is Role.ERROR]
        known = {each.rank: each for each in (cause.failure, *cause.same, *own) if each.kind is FailureKind.RANK}
        first, *others = known.values() or (None,)
        found = [first, *sorted(others, key=lambda failure: failure.rank or 0)] if first is not None else []
        return tuple(found[:_MOST_FAILED])


def _mark(failure: Failure, stopped_at: float) -> Failure:
    """Mark a failure that may be due to the stop; a lost connection never is, and of a rank its host has told."""
    if failure.kind is FailureKind.CONNECTION:
        return failure
    late_s = failure.at - stopped_at
    after_stop = failure.after_stop if failure.kind is FailureKind.RANK else late_s > 0
    return replace(failure, after_stop=after_stop, silent_s=failure.silent_s - max(0.0, late_s))


@dataclass(frozen=True, slots=True)
class _Node:
    """What is known of one node."""

    index: int
    plan: NodePlan
    state: NodeState
    output: NodeOutput
    session: Session

    def failures(self) -> list[Failure]:
        state = self.state
        ranks = [self._rank(local_rank, event) for local_rank, event in state.exits.items() if _is_bad(event)]
        if state.failure is not None:
            return [*ranks, self._keeper(state.failure)]
        if state.ended is not None and _is_bad(state.ended) and not ranks:
            return [self._torchrun(state.ended)]
        return ranks

    def successes(self) -> list[Failure]:
        exits = self.state.exits.items()
        return [self._rank(local_rank, event) for local_rank, event in exits if event.fields["code"] == 0]

    def _exited_at(self, local_rank: int) -> float:
        """Return when a rank exited, by this machine's clock.

        A message may have taken long, but never less than no time. A node reports exits in their order, so each of them
        was no later than those that it reported after it.
        """
        exits = self.state.exits
        from_then = list(exits.values())[list(exits).index(local_rank) :]
        return min(event.at - float(event.fields["age_s"]) for event in from_then)

    def _rank(self, local_rank: int, event: Event) -> Failure:
        at = self._exited_at(local_rank)
        printed = [_text(self.output.tail(local_rank, stream)) for stream in (STDOUT, STDERR)]
        stdout, stderr = gather_traceback(*printed)
        spoke = STDERR if stderr == printed[1] else STDOUT
        return self._make(
            FailureKind.RANK,
            at,
            silent_s=at - self.output.stream_heard_at(local_rank, spoke),
            rank=self.plan.first_rank + local_rank,
            local_rank=local_rank,
            gpu=self.plan.gpu_of(local_rank),
            code=event.fields["code"],
            signal=event.fields["signal"],
            oom=event.fields.get("oom"),
            after_stop=event.fields["was_stopping"],
            in_slurm_step=self.session.is_slurm_step,
            stdout=stdout,
            stderr=stderr,
        )

    def _torchrun(self, event: Event) -> Failure:
        return self._make(
            FailureKind.TORCHRUN,
            event.at,
            code=event.fields["code"],
            signal=event.fields["signal"],
            stderr=_text(self.output.tail(None, STDERR)),
        )

    def _keeper(self, failure: HostFailure) -> Failure:
        """Return the failure of the node itself: of its supervisor, or of the connection to it."""
        ending = self.state.keeper_ending
        is_supervisor = failure.kind is HostFailureKind.SUPERVISOR
        return self._make(
            FailureKind.SUPERVISOR if is_supervisor else FailureKind.CONNECTION,
            self.state.ended.at if self.state.ended else wall_clock(),
            code=ending.code if ending else None,
            signal=ending.signal if ending else None,
            oom=ending.oom if ending else None,
            in_slurm_step=self.session.is_slurm_step,
            text="" if ending else failure.text,
            stderr=self.session.noise(self.index),
        )

    def _make(self, kind: FailureKind, at: float, **known: Any) -> Failure:
        return Failure(self.plan.host.name, self.plan.node_rank, kind, at, **known)


def _text(tail: bytes) -> str:
    """Return the end of a stream without escapes, which a traceback may have in the middle of its words."""
    text = tail.decode("utf-8", "replace")
    return without_controls(text.replace("\r\n", "\n").replace("\r", "\n")) if "\x1b" in text else text


def _is_bad(event: Event) -> bool:
    """Return whether a process failed; a rank doesn't count if nobody knows how it ended."""
    return bool(event.fields.get("code") or event.fields.get("signal"))


LOST_HOST_SLACK_S = 6.0  # for SIGKILL and the census, after a host has waited for a heartbeat and for its ranks to save


def find_lost_host_wait(job: Job, states: Sequence[NodeState], now: float) -> float:
    """Return for how many seconds ranks may still be alive, and save, on nodes that could not be asked.

    now: wall-clock seconds. A node that is not known to be lost may have heard from this machine until now.
    """
    window_s = job.timeouts.silence_s + job.timeouts.stop_timeout_s + LOST_HOST_SLACK_S
    unasked = [state.lost_at or now for state in states if state.may_run and state.census is None]
    return max((0.0, *(heard_at + window_s - now for heard_at in unasked)))


PROGRESS_S = 600.0  # ranks that have printed for so long count as progress, if nothing shows whether they saved

# By the name of the known cause (diagnosis/signatures.py).
_KNOWN = {
    name: outcome
    for outcome, names in {
        Outcome.INPUT: "arguments local-rank script-missing cannot-run line-ends command-missing variable-missing",
        Outcome.IMPORT: "module-missing",
        Outcome.DISK: "disk-full save-cut-short",
        Outcome.HOST: "gpu-fell-off gpu-ecc fabric-manager driver-state infiniband-port",
        # Slurm has ended the job: its hosts are no longer ours.
        Outcome.STOPPED: "slurm-ended slurm-aborted",
    }.items()
    for name in names.split()
}
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
    if isinstance(error, HostsUnreachable):
        suspects = tuple(dict.fromkeys(failure.host for failure in error.failures))
        if _are_all(suspects, set(hosts).difference(here)):
            is_network = all(failure.kind in _NETWORK for failure in error.failures)
            return replace(refused, outcome=Outcome.NETWORK) if is_network else refused
        return replace(refused, outcome=Outcome.HOST, suspects=suspects)
    if isinstance(error, ChecksFailed) and not _are_all(error.hosts, hosts):
        return replace(refused, outcome=Outcome.HOST, suspects=error.hosts)
    return refused


def _are_all(suspects: Collection[str], hosts: Collection[str]) -> bool:
    """Return whether these are all of several hosts: then what they have in common is to blame, and none of them."""
    return len(hosts) > 1 and set(suspects) >= set(hosts)


def find_incidents(
    cause: Cause | None, refusal: LauncherError | None, ending: Ending | None, *, has_one_other: bool = False
) -> dict[str, Incident]:
    """Return, for each host that is to blame for the end of an attempt, what went wrong with it.

    ending: None if the attempt succeeded. A host is not to blame for what the user's program does. has_one_other:
    the run is on this machine and one other host; if that is lost, nobody knows whose network failed.
    """
    kind = cause.failure.kind if cause is not None else None
    is_cut = kind is FailureKind.CONNECTION or isinstance(refusal, HostsUnreachable)
    if ending is None or ending.outcome is not Outcome.HOST or (is_cut and has_one_other):
        return {}
    what: Incident = "lost" if is_cut or kind is FailureKind.SUPERVISOR else "had a broken GPU"
    return dict.fromkeys(ending.suspects, what if refusal is None or is_cut else "failed its checks")


def _find_outcome(result: Result) -> tuple[Outcome, tuple[str, ...]]:
    cause = result.cause
    if cause is None or result.interrupted_by is not None:
        return Outcome.STOPPED, ()
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
