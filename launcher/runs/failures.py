"""Turn what the nodes reported into Failures, each with the last lines of its process.

Here a node's HostFailure becomes a Failure of the run; `launcher.errors` describes all steps up to the screen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.clock import wall_clock
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.errors import HostFailure, HostFailureKind
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_output import NodeOutput
from launcher.session.connection import Event
from launcher.session.node_state import NodeState
from launcher.session.session import Session

# What torchrun logs of the rank that made it fail (torch/distributed/elastic/multiprocessing/api.py).
_REAPED = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: (\d{1,4}) \(pid: ")


def find_failures(
    session: Session, plan: LaunchPlan, outputs: Sequence[NodeOutput], stopped_at: float | None
) -> list[Failure]:
    """Return the failures of all nodes; stopped_at: when the stop was sent (wall-clock)."""
    found = []
    for index, node in enumerate(plan.nodes):
        found += _Node(index, node, session.states[index], outputs[index], session).failures()
    return found if stopped_at is None else [_mark(failure, stopped_at) for failure in found]


def find_successes(session: Session, plan: LaunchPlan, outputs: Sequence[NodeOutput]) -> list[Failure]:
    """Return the ranks that exited with 0: if all others only lost a rank, one of these is the cause."""
    return [
        success
        for index, node in enumerate(plan.nodes)
        for success in _Node(index, node, session.states[index], outputs[index], session).successes()
    ]


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
            return [self._find_reaped() or self._torchrun(state.ended)]
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
        return Failure(
            host=self.plan.host.name,
            node_rank=self.plan.node_rank,
            kind=FailureKind.RANK,
            at=at,
            silent_s=at - self.output.stream_heard_at(local_rank, STDERR),
            rank=self.plan.first_rank + local_rank,
            local_rank=local_rank,
            gpu=self.plan.gpu_of(local_rank),
            code=event.fields["code"],
            signal=event.fields["signal"],
            oom=event.fields.get("oom"),
            after_stop=event.fields["was_stopping"],
            in_slurm_step=self.session.is_slurm_step,
            stdout=_text(self.output.tail(local_rank, STDOUT)),
            stderr=_text(self.output.tail(local_rank, STDERR)),
        )

    def _find_reaped(self) -> Failure | None:
        """Return the rank that failed, by torchrun's words: on a busy host torchrun collects its exit code first."""
        found = _REAPED.search(_text(self.output.tail(None, STDERR)))
        event = self.state.exits.get(int(found[2])) if found else None
        if found is None or event is None:
            return None
        code = int(found[1])
        failure = self._rank(int(found[2]), event)
        return replace(failure, code=code if code > 0 else None, signal=-code if code < 0 else None)

    def _torchrun(self, event: Event) -> Failure:
        return Failure(
            host=self.plan.host.name,
            node_rank=self.plan.node_rank,
            kind=FailureKind.TORCHRUN,
            at=event.at,
            code=event.fields["code"],
            signal=event.fields["signal"],
            stderr=_text(self.output.tail(None, STDERR)),
        )

    def _keeper(self, failure: HostFailure) -> Failure:
        """Return the failure of the node itself: of its supervisor, or of the connection to it."""
        ending = self.state.keeper_ending
        is_supervisor = failure.kind is HostFailureKind.SUPERVISOR
        return Failure(
            host=failure.host,
            node_rank=self.plan.node_rank,
            kind=FailureKind.SUPERVISOR if is_supervisor else FailureKind.CONNECTION,
            at=self.state.ended.at if self.state.ended else wall_clock(),
            code=ending["code"] if ending else None,
            signal=ending["signal"] if ending else None,
            text="" if ending else failure.text,
            stderr=self.session.noise(self.index),
        )


def _text(tail: bytes) -> str:
    return tail.decode("utf-8", "replace")


def _is_bad(event: Event) -> bool:
    """Return whether a process failed; if torchrun collected a rank's exit code first, torchrun's words show it."""
    return bool(event.fields.get("code") or event.fields.get("signal"))
