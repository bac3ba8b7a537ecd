"""Find a run that hangs, and show the stacks of all ranks, which Ctrl-\\ does too.

A run hangs if no rank prints anything for longer than the user allows, or than its own gaps suggest.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial

from launcher.clock import wall_clock
from launcher.diagnosis.failure import Failure, FailureKind
from launcher.diagnosis.stacks import FoldedStacks, Stack, fold, folded_lines, parse_stack, stack_lines
from launcher.job.job import Job, OnHang
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.console import Console
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_output import NodeOutput
from launcher.output.run_folder import RunRecord
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.wording import count, duration, span

ANSWER_S = 5.0  # a node needs up to 3 s
LEAST_S = 360.0  # learned: so that a checkpoint or an evaluation of five minutes raises no alarm
GAPS = 10  # times the longest gap so far
_LOOK_S = 60.0  # while it is being learned

_Place = tuple[int, int]  # index of the node, local rank


class StackTaker:
    """Asks all nodes for the stacks of their ranks, and shows the answers in one block; the run continues."""

    def __init__(self, session: Session, record: RunRecord, console: Console) -> None:
        self._session = session
        self._record = record
        self._console = console
        self._plan: LaunchPlan | None = None
        self._number = 0  # of the question; an answer to an earlier one comes too late
        self._wanted: set[_Place] = set()
        self._answers: dict[_Place, Event] = {}
        self._result: asyncio.Future[FoldedStacks | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def allowed(self, plan: LaunchPlan) -> Iterator[None]:
        """Allow requests while the block runs: before it no rank runs, and after it they are being stopped."""
        self._plan = plan
        try:
            with self._session.subscribe(messages.STACK, self._take_answer):
                yield
        finally:
            self._plan = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def take(self, *, is_announced: bool = False) -> asyncio.Future[FoldedStacks | None]:
        """Ask, and show the answers that come within 5 s; None if there is no rank to ask."""
        if self._result is not None and not self._result.done():
            return self._result  # one is on its way
        loop = asyncio.get_running_loop()
        self._result = loop.create_future()
        self._wanted = self._living() if self._plan is not None else set()
        if not self._wanted:
            self._session.say("launch: no stacks to show: no rank is running")
            self._result.set_result(None)
            return self._result
        self._number += 1
        self._answers = {}
        if not is_announced:
            self._session.say(f"launch: taking the stacks of {count(len(self._wanted), 'rank')}")
        self._session.send_to_all(messages.STACKS, number=self._number)
        self._timer = loop.call_later(ANSWER_S, self._finish)
        return self._result

    def _living(self) -> set[_Place]:
        return {
            (index, local_rank)
            for index, state in enumerate(self._session.states)
            if state.ended is None and state.failure is None
            for local_rank in state.started - state.exits.keys()
        }

    def _take_answer(self, event: Event) -> None:
        place = event.index, event.fields["local_rank"]
        # A node may send anything: answers that nobody requested, of up to a megabyte each, are not kept.
        if self._timer is None or event.fields["number"] != self._number or place not in self._wanted:
            return
        self._answers[place] = event
        if self._wanted <= self._answers.keys():
            self._timer.cancel()
            self._finish()

    def _finish(self) -> None:
        """Finish the request even if showing the answers fails: the next request, and HangWatch, wait for that."""
        assert self._result is not None  # somebody has asked
        self._timer = None
        try:
            self._show(self._result)
        except Exception as error:  # noqa: BLE001 - the run continues, whatever its stacks look like
            self._session.say(f"launch: can't show the stacks: {error!r}")
            self._result.set_result(None)

    def _show(self, result: asyncio.Future[FoldedStacks | None]) -> None:
        assert self._plan is not None  # the timer runs while it is allowed
        living = self._living()
        found = [
            (self._plan.nodes[index], local_rank, self._answers.get((index, local_rank)))
            for index, local_rank in sorted(self._wanted)
            if (index, local_rank) in self._answers.keys() | living  # one that has ended meanwhile needs no explanation
        ]
        self._answers = {}
        folded = fold(_stack(*place) for place in found)
        text = "".join(_full_text(*place) for place in found)
        first, *rest = folded_lines(folded)
        for line in [f"launch: {first}", *rest]:
            self._session.say(line)
        path = self._record.folder / self._record.name_stacks(self._number)
        self._record.disk.put(partial(self._record.keep_text, path.name, text))  # it says so if it can't
        self._session.say(f"launch: full text in {self._record.show(path)}")
        groups = [{"ranks": _ranks(each.stacks), "lines": stack_lines(each.first)} for each in folded.groups]
        of_run = {"run": self._record.run_id, "name": self._record.name, "file": str(path)}
        self._console.emit("stacks", **of_run, odd=_ranks(folded.odd), groups=groups)
        result.set_result(folded)


def _stack(node: NodePlan, local_rank: int, answer: Event | None) -> Stack:
    host, rank = node.host.name, node.first_rank + local_rank
    if answer is None:
        return Stack(host, rank, is_silent=True)
    fields = answer.fields
    frames = parse_stack(fields["content"].decode("utf-8", "replace"), node.cwd)
    return Stack(host, rank, frames, fields["state"], fields["wchan"], fields["reason"])


def _ranks(stacks: Sequence[Stack]) -> list[int]:
    return [stack.rank for stack in stacks]


def _full_text(node: NodePlan, local_rank: int, answer: Event | None) -> str:
    head = f"==== {node.host.name} rank {node.first_rank + local_rank}"
    if answer is None or not answer.fields["content"]:
        return "\n".join([head, *stack_lines(_stack(node, local_rank, answer)), "", ""])
    text = answer.fields["content"].decode("utf-8", "replace")
    return f"{head}, pid {answer.fields['pid']}\n{text}\n"


class HangWatch:
    """Watches whether any rank prints anything; if none does for too long, it takes the stacks.

    Then either `failure` says so, or the run continues, and the next silence counts again.
    """

    def __init__(
        self, session: Session, plan: LaunchPlan, outputs: Sequence[NodeOutput], stacks: StackTaker, job: Job
    ) -> None:
        self.failure: Failure | None = None
        self._session = session
        self._plan = plan
        self._outputs = outputs
        self._stacks = stacks
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
            folded = await self._stacks.take(is_announced=True)
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
