"""Write down what a run does now, and notice when it waits for hosts for long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from launcher.clock import wall_clock
from launcher.errors import LauncherError
from launcher.output.write_queue import WriteQueue
from launcher.runs.run_state import Activity, RestartCount, RunState

LONG_WAIT_S = 300.0  # then --notify hears of it


class StateKeeper:
    """Knows what its run does, and writes each change down in another thread, so that no disk delays the run.

    It must be used in the event loop of the run.
    """

    def __init__(
        self, write: Callable[[RunState], object] | None, disk: WriteQueue, on_long_wait: Callable[[str], object]
    ) -> None:
        """on_long_wait: called once in a wait for hosts, after LONG_WAIT_S, with the wait in words."""
        self._write = write
        self._disk = disk
        self._on_long_wait = on_long_wait
        self._long_wait: asyncio.TimerHandle | None = None
        self.state = RunState(Activity.STARTING, wall_clock(), RestartCount())

    def change(self, what: Activity, **values: Any) -> None:
        """Note what the run does from now on; values: of RunState. A wait continues, whichever hosts it is for."""
        since = self.state.since if what is self.state.what else wall_clock()
        self.state = RunState(what, since, self.state.restarts, **values)
        if what is not Activity.WAITING:
            self.close()
        elif self._long_wait is None:
            self._long_wait = asyncio.get_running_loop().call_later(LONG_WAIT_S, self._tell_long_wait)
        if self._write is not None:
            with contextlib.suppress(LauncherError):  # no thread is left; a run needs no state
                self._disk.put(partial(self._write, self.state))

    def note_odd(self, subjects: Sequence[str]) -> None:
        """Note which GPUs and hosts stand out now."""
        if self.state.what is Activity.RUNNING:
            self.change(Activity.RUNNING, odd=tuple(subjects))

    def count(self, restarts: RestartCount) -> None:
        """Note how the restarts are counted from now on; the next change writes it."""
        self.state = replace(self.state, restarts=restarts)

    def close(self) -> None:
        """Tell of no wait any more."""
        if self._long_wait is not None:
            self._long_wait.cancel()
            self._long_wait = None

    def _tell_long_wait(self) -> None:
        self._on_long_wait(str(self.state.as_doing(wall_clock())))
