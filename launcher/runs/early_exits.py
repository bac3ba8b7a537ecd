"""The message about ranks that succeed while others still run, since those may wait for them for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from launcher.job.plan import LaunchPlan
from launcher.node import messages
from launcher.runs.report import early_exit_line
from launcher.session.connection import Event
from launcher.session.session import Session

NOTICE_S = 30.0  # ranks of one run don't end at the same moment


class EarlyExitNotice:
    """Prints once which ranks have succeeded, if others still run half a minute after the first of them."""

    def __init__(self, session: Session, plan: LaunchPlan) -> None:
        self._session = session
        self._plan = plan
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Allow the message while the block runs: before it no rank runs, and after it they are being stopped."""
        try:
            with self._session.subscribe(messages.EXIT, self._take_exit):
                yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _take_exit(self, event: Event) -> None:
        if self._timer is None and event.fields["code"] == 0:
            self._timer = asyncio.get_running_loop().call_later(NOTICE_S, self._say)

    def _say(self) -> None:
        succeeded, names, running = Counter[str](), list[str](), 0
        for node, state in zip(self._plan.nodes, self._session.states, strict=True):
            running += 0 if state.ended is not None else node.nproc - len(state.exits)
            for local_rank, event in state.exits.items():
                if event.fields["code"] == 0:
                    succeeded[node.host.name] += 1
                    names.append(f"{node.host.name} rank {node.first_rank + local_rank}")
        if running:
            self._session.say(f"launch: {early_exit_line(names[0], succeeded, running)}")
