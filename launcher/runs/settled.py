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


class SettledNotice:
    """Waits until every rank of the plan has started, and then for a while."""

    def __init__(self, session: Session, plan: LaunchPlan, on_settled: Callable[[], object] | None) -> None:
        self._session = session
        self._plan = plan
        self._on_settled = on_settled
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Watch while the block runs; after it the ranks are being stopped."""
        try:
            with self._session.subscribe(messages.STARTED, self._take_started):
                yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _take_started(self, event: Event) -> None:
        numbers = [len(state.started) for state in self._session.states]
        if self._on_settled is not None and numbers == [node.nproc for node in self._plan.nodes]:
            self._timer = asyncio.get_running_loop().call_later(SETTLED_S, self._on_settled)
