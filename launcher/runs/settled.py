"""Notice that all ranks have run for a while: most of what fails at once has failed by then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from launcher.job.plan import LaunchPlan
from launcher.node import messages
from launcher.session.connection import Event
from launcher.session.session import Session

SETTLED_S = 10.0
RECHECK_S = 0.5


@contextlib.contextmanager
def call_when_settled(session: Session, plan: LaunchPlan, on_settled: Callable[[], object] | None) -> Iterator[None]:
    """Call `on_settled`, if there is one, once every rank of the plan has started and the block still runs later.

    A host that is silent by then is waited for: it is heard again, or lost.
    """
    timers: list[asyncio.TimerHandle] = []

    def take_started(event: Event) -> None:
        numbers = [len(state.started) for state in session.states]
        if on_settled is not None and numbers == [node.nproc for node in plan.nodes]:
            timers.append(asyncio.get_running_loop().call_later(SETTLED_S, settle, on_settled))

    def settle(on_settled: Callable[[], object]) -> None:
        if session.is_silent():
            timers.append(asyncio.get_running_loop().call_later(RECHECK_S, settle, on_settled))
        else:
            on_settled()

    try:
        with session.subscribe(messages.STARTED, take_started):
            yield
    finally:
        for timer in timers:
            timer.cancel()
