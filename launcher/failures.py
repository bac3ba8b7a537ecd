"""What the nodes said -> the failures among it, each with the last lines of its process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.diagnosis import Failure
from launcher.fleet import Event
from launcher.output import STDERR, STDOUT, NodeOutput
from launcher.plan import LaunchPlan
from launcher.session import NodeState, Session


def find_failures(
    session: Session, plan: LaunchPlan, outputs: Sequence[NodeOutput], stopped_at: float | None
) -> list[Failure]:
    """Return what ended as it should not, on all nodes; stopped_at: when we began to end the run (wall-clock)."""
    found = []
    for index, (state, output) in enumerate(zip(session.states, outputs, strict=True)):
        node = _Node(index, state, output, plan, session.noise(index), stopped_at is not None)
        found += node.failures()
    return [
        replace(failure, after_stop=stopped_at is not None and failure.at > stopped_at and failure.what != "connection")
        for failure in found
    ]


@dataclass(frozen=True, slots=True)
class _Node:
    """What is known of one node."""

    index: int
    state: NodeState
    output: NodeOutput
    plan: LaunchPlan
    noise: str
    is_stopping: bool

    def failures(self) -> list[Failure]:
        state = self.state
        ranks = [self._rank(local_rank, event) for local_rank, event in state.exits.items() if _is_bad(event)]
        if state.failure is not None:
            what = "supervisor" if state.failure.kind == "supervisor" else "connection"
            return [*ranks, self._keeper(what, None, state.failure.text)]
        if state.census is not None and not self.is_stopping:
            # A census that nobody asked for: guardian or supervisor was killed, and the other one has cleaned up.
            ending = state.census.get("supervisor")
            return [*ranks, self._keeper("supervisor", ending, state.census.get("reason") or "")]
        if state.ended is not None and _is_bad(state.ended) and not ranks:
            return [self._torchrun(state.ended)]
        return ranks

    def _rank(self, local_rank: int, event: Event) -> Failure:
        node = self.plan.nodes[self.index]
        return Failure(
            host=node.host.name,
            node_rank=self.index,
            what="rank",
            at=event.at - event.fields["age_s"],
            rank=node.first_rank + local_rank,
            local_rank=local_rank,
            gpu=node.gpu_of(local_rank),
            code=event.fields["code"],
            signal=event.fields["signal"],
            stdout=_text(self.output.tail(local_rank, STDOUT)),
            stderr=_text(self.output.tail(local_rank, STDERR)),
        )

    def _torchrun(self, event: Event) -> Failure:
        return Failure(
            host=self.plan.nodes[self.index].host.name,
            node_rank=self.index,
            what="torchrun",
            at=event.at,
            code=event.fields["code"],
            signal=event.fields["signal"],
            stderr=_text(self.output.tail(None, STDERR)),
        )

    def _keeper(self, what: str, ending: Mapping[str, Any] | None, text: str) -> Failure:
        return Failure(
            host=self.plan.nodes[self.index].host.name,
            node_rank=self.index,
            what=what,
            at=self.state.ended.at if self.state.ended else time.time(),
            code=ending["code"] if ending else None,
            signal=ending["signal"] if ending else None,
            text=text,
            stderr=self.noise,
        )


def _text(tail: bytes) -> str:
    return tail.decode("utf-8", "replace")


def _is_bad(event: Event) -> bool:
    """Whether a process ended badly; where torchrun was quicker than we, its own end tells."""
    return bool(event.fields.get("code") or event.fields.get("signal"))
