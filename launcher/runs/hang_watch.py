"""Find a run that hangs: no rank prints anything for longer than the user allows, or than its own gaps suggest."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

from launcher.clock import wall_clock
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.stacks import FoldedStacks
from launcher.job.job import Job, OnHang
from launcher.job.plan import LaunchPlan
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_output import NodeOutput
from launcher.runs.hangs import StackTaker
from launcher.runs.nccl_ras import NcclRas
from launcher.session.session import Session
from launcher.wording import duration, span

LEAST_S = 360.0  # learned: so that a checkpoint or an evaluation of five minutes raises no alarm
GAPS = 10  # times the longest gap so far
_LOOK_S = 60.0  # while it is being learned


class HangWatch:
    """Watches whether any rank prints anything; if none does for too long, it takes the stacks, and asks NCCL.

    Then either `failure` says so, or the run continues, and the next silence counts again.
    """

    def __init__(
        self, session: Session, plan: LaunchPlan, outputs: Sequence[NodeOutput], stacks: StackTaker, ras: NcclRas,
        job: Job,
    ) -> None:  # fmt: skip
        self.failure: Failure | None = None
        self._session = session
        self._plan = plan
        self._outputs = outputs
        self._stacks = stacks
        self._ras = ras
        is_share = plan.nnodes > len(plan.nodes)  # of a run by hand: here, silence may be the rule
        self._timeout_s = math.inf if is_share and job.hang_timeout_s is None else job.hang_timeout_s
        self._is_only_told = job.on_hang is OnHang.TELL
        self._task: asyncio.Task[None] | None = None
        self._began_at = time.monotonic()

    def __enter__(self) -> HangWatch:
        if self._timeout_s != math.inf:
            self._task = self._session.watch(self._watch())
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while self.failure is None:
            heard_at = await self._await_silence()
            silent_s = self._limit_s()
            self._session.say(f"launch: no output for {_words(silent_s)}, taking the stacks of all ranks")
            folded = await self._stacks.take(is_announced=True, is_gentle=self._is_only_told)
            is_started = any(output.has_rhythm for output in self._outputs)  # before, a question may end a rank
            if is_started and self._heard_at() == heard_at:
                await self._ras.show()
            if self._heard_at() != heard_at:
                self._session.say("launch: there is output again, so the run continues")
            elif self._is_only_told:
                self._session.say(_continuing(folded))
                await self._await_output(heard_at)
            else:
                self.failure = self._describe(silent_s, folded)
        self._session.wake()

    async def _await_silence(self) -> float:
        """Return when a rank printed last, once that is too long ago."""
        while True:
            heard_at = self._heard_at()
            left_s = heard_at + self._limit_s() - time.monotonic()
            if left_s <= 0:
                return heard_at
            await asyncio.sleep(left_s if self._timeout_s is not None else min(left_s, _LOOK_S))

    async def _await_output(self, heard_at: float) -> None:
        while self._heard_at() == heard_at:
            await asyncio.sleep(min(_LOOK_S, self._limit_s()))

    def _limit_s(self) -> float:
        """Return how long all ranks may be silent: as the user said, or by the gaps of the host that printed last.

        Other hosts may have printed a few lines at the start, and nothing since.
        """
        if self._timeout_s is not None:
            return self._timeout_s
        talkers = [output for output in self._outputs if output.has_rhythm]
        last = max(talkers, key=lambda output: output.heard_at, default=None)
        return max(LEAST_S, GAPS * last.longest_gap_s) if last is not None else math.inf

    def _heard_at(self) -> float:
        """Return when a rank last printed, or the start if none has: many runs hang before their first line."""
        return max(self._began_at, *(output.heard_at for output in self._outputs))

    def _describe(self, silent_s: float, folded: FoldedStacks | None) -> Failure:
        text = f"no output for {_words(silent_s)} (--hang-timeout)"
        if folded is None or not folded.odd:
            first = self._plan.nodes[0]
            return Failure(first.host.name, first.node_rank, FailureKind.HANG, wall_clock(), text=text)
        odd = folded.odd[0]
        index = next(
            place for place, node in enumerate(self._plan.nodes) if 0 <= odd.rank - node.first_rank < node.nproc
        )
        node, output = self._plan.nodes[index], self._outputs[index]
        local_rank = odd.rank - node.first_rank
        return Failure(
            host=odd.host, node_rank=node.node_rank, kind=FailureKind.HANG, at=wall_clock(), rank=odd.rank,
            local_rank=local_rank, text=f"{text}, {folded.verdict}", gpu=node.gpu_of(local_rank),
            stdout=output.tail(local_rank, STDOUT).decode("utf-8", "replace"),
            stderr=output.tail(local_rank, STDERR).decode("utf-8", "replace"),
        )  # fmt: skip


def _words(seconds: float) -> str:
    return span(seconds) if seconds == round(seconds, 1) else duration(seconds)


def _continuing(folded: FoldedStacks | None) -> str:
    odd = f": {folded.verdict}" if folded is not None and folded.odd else ""
    return f"launch: the run may hang{odd}; it continues (--on-hang end or restart would stop it)"
