"""Show the stacks of all ranks, on Ctrl-\\ or when a run has been silent for too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from launcher.diagnosis.stacks import FoldedStacks, Stack, fold, folded_lines, parse_stack, stack_lines
from launcher.job.plan import LaunchPlan, NodePlan
from launcher.node import messages
from launcher.output.console import RunConsole
from launcher.output.run_folder import RunRecord
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.wording import count

KEEP_S = 2.0  # for the file with the full text; its disk may hang
ANSWER_S = 5.0  # a node needs up to 4 s where py-spy and then the rank itself are slow

_Place = tuple[int, int]  # index of the node, local rank


class StackTaker:
    """Asks all nodes for the stacks of their ranks, and shows the answers in one block; the run continues."""

    def __init__(self, session: Session, record: RunRecord, console: RunConsole) -> None:
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

    def take(self, *, is_announced: bool = False, is_gentle: bool = False) -> asyncio.Future[FoldedStacks | None]:
        """Ask, and show the answers that come within 5 s; None if there is no rank to ask.

        is_gentle: only look at the ranks from outside; a signal may interrupt a system call.
        """
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
        self._session.send_to_all(messages.STACKS, number=self._number, is_gentle=is_gentle)
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
        name = self._record.name_text("stacks", self._number)
        loop = asyncio.get_running_loop()

        def settle(path: Path | None) -> None:
            if result.done():
                return
            result.set_result(folded)  # whoever waits for it continues behind these lines
            if path is not None:
                self._session.say(f"launch: full text in {self._record.show(path)}")
            names = {"run": self._record.run_id, "name": self._record.name}
            self._console.emit("stacks", **names, file=path, **_as_record(folded))

        def keep() -> None:
            path = self._record.keep_text(name, text)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(settle, path)

        self._record.disk.put(keep)
        loop.call_later(KEEP_S, settle, None)


def _stack(node: NodePlan, local_rank: int, answer: Event | None) -> Stack:
    host, rank = node.host.name, node.first_rank + local_rank
    if answer is None:
        return Stack(host, rank, is_silent=True)
    fields = answer.fields
    frames = parse_stack(fields["content"].decode("utf-8", "replace"), node.cwd)
    return Stack(host, rank, frames, fields["state"], fields["wchan"], fields["reason"])


def _full_text(node: NodePlan, local_rank: int, answer: Event | None) -> str:
    head = f"==== {node.host.name} rank {node.first_rank + local_rank}"
    if answer is None or not answer.fields["content"]:
        return "\n".join([head, *stack_lines(_stack(node, local_rank, answer)), "", ""])
    text = answer.fields["content"].decode("utf-8", "replace")
    return f"{head}, pid {answer.fields['pid']}, by {answer.fields['source']}\n{text}\n"


def _as_record(folded: FoldedStacks) -> dict[str, object]:
    return {
        "odd": [stack.rank for stack in folded.odd],
        "groups": [
            {"ranks": [stack.rank for stack in group.stacks], "lines": stack_lines(group.first)}
            for group in folded.groups
        ],
    }
