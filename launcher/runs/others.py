"""What happened to the ranks other than the one that is blamed, counted by host. Nothing here does I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import Failure, FailureKind, Role
from launcher.job.plan import LaunchPlan
from launcher.session.node_state import Census, NodeState


@dataclass(frozen=True, slots=True)
class Others:
    """How many other ranks ended in which way, by host, without those of hosts that could not be asked."""

    ranks: int = 0  # of the run, as far as it is known here
    same: Mapping[str, int] = field(default_factory=dict)  # with the error of the rank that is blamed, and that rank
    failed: Mapping[str, int] = field(default_factory=dict)  # by themselves
    followed: Mapping[str, int] = field(default_factory=dict)  # because of the rank that is blamed
    stopped: Mapping[str, int] = field(default_factory=dict)  # by `launch`
    succeeded: Mapping[str, int] = field(default_factory=dict)


def count_others(
    cause: Cause, failures: Sequence[Failure], plan: LaunchPlan, states: Sequence[NodeState], census: Census
) -> Others:
    """Count the other ranks of a failed run."""
    ranks = sum(node.nproc for node in plan.nodes)
    if cause.failure.kind is FailureKind.HANG and cause.failure.rank is None:
        return Others(ranks)  # it was all of them
    by_rank = {failure.rank: failure for failure in failures if failure.kind is FailureKind.RANK}
    alike = {failure.rank for failure in (cause.failure, *cause.same)}
    same = Counter[str]()
    counts = {fate: Counter[str]() for fate in ("failed", "followed", "stopped", "succeeded")}
    for node, state in zip(plan.nodes, states, strict=True):
        host = node.host.name
        if host in census.unasked:
            continue  # the census names those
        for local_rank in state.started:
            rank = node.first_rank + local_rank
            if rank in alike:
                same[host] += 1
            else:
                counts[_fate(state, local_rank, by_rank.get(rank), cause)][host] += 1
    return Others(ranks, same if cause.same else {}, **counts)


def _fate(state: NodeState, local_rank: int, failure: Failure | None, cause: Cause) -> str:
    event = state.exits.get(local_rank)
    if event is None:
        return "stopped"
    after_stop = event.fields["was_stopping"]
    if failure is None:  # it succeeded, or nobody knows how it ended
        return "stopped" if after_stop else "succeeded" if event.fields["code"] == 0 else "failed"
    if failure.role is Role.STOPPED:  # a supervisor in trouble stops its ranks before it is told to
        return "stopped" if after_stop or state.failure is not None else "failed"
    return "followed" if failure.role is Role.CONSEQUENCE and not cause.failure.is_secondary else "failed"
