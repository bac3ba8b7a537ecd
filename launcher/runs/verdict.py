"""Decide, from all that the nodes have reported so far, whether the run has failed, and why."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.clock import wall_clock
from launcher.diagnosis.cause import Cause, find_cause
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.tracebacks import extract_traceback
from launcher.job.job import Job
from launcher.job.plan import LaunchPlan
from launcher.node import messages
from launcher.output.node_output import NodeOutput
from launcher.runs.failures import find_failures, find_successes
from launcher.runs.others import Others, count_others
from launcher.session.node_state import Census
from launcher.session.session import Session

_EARLY_S = 60.0
_PORT_TAKEN = ("port-number-taken", "port-taken")  # signatures


@dataclass(slots=True)
class Verdict:
    """What is known about a run at the moment; each call looks again, since more may have been reported."""

    session: Session
    plan: LaunchPlan
    outputs: Sequence[NodeOutput]
    knows_all_ranks: bool  # or other launchers have started some of them
    planned_at: float  # wall-clock: the ranks are started then
    stopped_at: float | None = None  # wall-clock: what ends later was stopped by `launch`

    def failures(self) -> list[Failure]:
        """Return what has failed so far."""
        return find_failures(self.session, self.plan, self.outputs, self.stopped_at)

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

    def has_lost_port(self, cause: Cause, job: Job) -> bool:
        """Return whether the port that `launch` chose and held for torchrun was taken when torchrun came."""
        failure, known = cause.failure, cause.explanation
        is_ours = job.master_port is None and failure.kind is FailureKind.TORCHRUN and failure.node_rank == 0
        has_begun = any(state.started for state in self.session.states)
        return is_ours and not has_begun and known is not None and known.name in _PORT_TAKEN

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
        if number == signal.SIGTERM and any(map(_is_terminated, failures)):
            # Slurm stops supervisors, ranks and `launch` together: what follows from that is no cause.
            failures = [failure for failure in failures if failure.is_final]
        return self._find_cause(failures or ([hang] if hang is not None else []), None)

    def _find_cause(self, failures: Sequence[Failure], told: Failure | None) -> Cause | None:
        ranks = range(self.plan.world_size if self.knows_all_ranks else 0)
        succeeded = find_successes(self.session, self.plan, self.outputs)
        return find_cause(failures, ranks, succeeded=succeeded, told=told)

    def count_others(self, cause: Cause, census: Census) -> Others:
        """Count what became of the other ranks, once all have ended."""
        return count_others(cause, self.failures(), self.plan, self.session.states, census)


def _is_terminated(failure: Failure) -> bool:
    return failure.is_terminated or failure.text == messages.TERMINATED
