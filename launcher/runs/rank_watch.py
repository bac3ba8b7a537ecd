"""Notice what ranks do besides failing: all of them have run for a while, or some succeed while others still run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from launcher.job.plan import LaunchPlan
from launcher.node import messages
from launcher.runs.report import early_exit_line
from launcher.session.connection import Event
from launcher.session.session import Session

ALL_RUN_S = 10.0  # most of what fails at once has failed by then
RECHECK_S = 0.5
NOTICE_S = 30.0  # ranks of one run don't end at the same moment


@contextlib.contextmanager
def call_when_all_run(session: Session, plan: LaunchPlan, call: Callable[[], object]) -> Iterator[None]:
    """Call it once every rank of the plan has started and the block still runs later.

    A host that is silent by then is waited for: it is heard again, or lost.
    """
    timers: list[asyncio.TimerHandle] = []

    def begin() -> None:
        timers.append(asyncio.get_running_loop().call_later(ALL_RUN_S, call_unless_silent))

    def call_unless_silent() -> None:
        if session.is_silent():
            timers.append(asyncio.get_running_loop().call_later(RECHECK_S, call_unless_silent))
        else:
            call()

    try:
        with call_when_all_start(session, plan, begin):
            yield
    finally:
        for timer in timers:
            timer.cancel()


@contextlib.contextmanager
def call_when_all_start(session: Session, plan: LaunchPlan, call: Callable[[], object]) -> Iterator[None]:
    """Call it once every rank of the plan has started."""

    def take_started(event: Event) -> None:
        if [len(state.started) for state in session.states] == [node.nproc for node in plan.nodes]:
            call()

    with session.subscribe(messages.STARTED, take_started):
        yield


@contextlib.contextmanager
def say_early_exits(session: Session, plan: LaunchPlan) -> Iterator[None]:
    """Say once which ranks have succeeded, if others still run half a minute after the first of them.

    Those may wait for them for ever. Before the block no rank runs, and after it they are being stopped.
    """
    timers: list[asyncio.TimerHandle] = []

    def take_exit(event: Event) -> None:
        if not timers and event.fields["code"] == 0:
            timers.append(asyncio.get_running_loop().call_later(NOTICE_S, say))

    def say() -> None:
        succeeded, names, running = Counter[str](), list[str](), 0
        for node, state in zip(plan.nodes, session.states, strict=True):
            running += 0 if state.ended is not None else node.nproc - len(state.exits)
            for local_rank, event in state.exits.items():
                if event.fields["code"] == 0:
                    succeeded[node.host.name] += 1
                    names.append(f"{node.host.name} rank {node.first_rank + local_rank}")
        if running:
            session.say(f"launch: {early_exit_line(names[0], succeeded, running)}")

    try:
        with session.subscribe(messages.EXIT, take_exit):
            yield
    finally:
        for timer in timers:
            timer.cancel()
