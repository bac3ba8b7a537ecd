"""Write down what a run does now, and notice when it waits for hosts for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from launcher.clock import wall_clock
from launcher.errors import LauncherError
from launcher.output.write_queue import WriteQueue
from launcher.runs.run_state import Activity, RestartCount, RunState

LONG_WAIT_S = 300.0  # then --notify hears of it


class StateKeeper:
    """Knows what its run does, and writes each change down in another thread, so that no disk delays the run.

    Of several changes that the disk is too slow for, only the last is written. Nothing is written before the plan of
    the first attempt is known: until then nothing of the run may stay. It must be used in the event loop of the run.
    """

    def __init__(
        self, write: Callable[[RunState], object] | None, disk: WriteQueue, on_long_wait: Callable[[str], object]
    ) -> None:
        """on_long_wait: called once in a wait for hosts, after LONG_WAIT_S, with the wait in words."""
        self._write = write
        self._disk = disk
        self._on_long_wait = on_long_wait
        self._has_plan = False
        self._is_queued = False
        self._lost_at: dict[str, float] = {}  # hosts that could not be used since all ranks ran
        self._long_wait: asyncio.TimerHandle | None = None
        self.state = RunState(Activity.STARTING, wall_clock(), RestartCount())

    def begin_attempt(self) -> None:
        """Note that an attempt begins; one that hosts kept from starting still waits for them."""
        if self.state.what is not Activity.WAITING:
            self._change(Activity.STARTING)

    def plan(self) -> None:
        """Note that all hosts have passed their checks, and the ranks are about to start."""
        self._has_plan = True
        self._end_wait()
        self._change(Activity.STARTING)

    def run(self) -> None:
        """Note that all ranks have started."""
        self._lost_at.clear()
        self._change(Activity.RUNNING)

    def stop(self) -> None:
        """Note that the ranks are being stopped."""
        self._end_wait()
        self._change(Activity.STOPPING)

    def search(self) -> None:
        """Note that the host to blame is searched."""
        self._change(Activity.SEARCHING)

    def lose(self, hosts: Collection[str]) -> None:
        """Note that these hosts can't be used: a wait for them would have begun now."""
        for name in hosts:
            self._lost_at.setdefault(name, wall_clock())

    def pause(self, seconds: float) -> None:
        """Note that another attempt begins after so many seconds."""
        self._end_wait()
        self._change(Activity.PAUSED, until=wall_clock() + seconds)

    def wait_for(self, hosts: Collection[str]) -> None:
        """Note that no attempt can start without these hosts, which the run has lost or can't use."""
        self.lose(hosts)
        self._change(Activity.WAITING, hosts={name: self._lost_at[name] for name in hosts})
        if self._long_wait is None:
            rest_s = max(0.0, min(self.state.hosts.values()) + LONG_WAIT_S - wall_clock())
            self._long_wait = asyncio.get_running_loop().call_later(rest_s, self._tell_long_wait)

    def queue(self, place: int, behind: str) -> None:
        """Note that the run is in the queue for GPUs that others have claimed, and who is before it."""
        self._has_plan = True  # of a run that is to be listed
        self._end_wait()
        self._change(Activity.QUEUED, place=place, behind=behind)

    def note_odd(self, subjects: Sequence[str]) -> None:
        """Note which GPUs and hosts stand out now."""
        if self.state.what is Activity.RUNNING:
            self._change(Activity.RUNNING, odd=tuple(subjects))

    def count(self, restarts: RestartCount) -> None:
        """Note how the restarts are counted from now on; the next change writes it."""
        self.state = replace(self.state, restarts=restarts)

    def close(self) -> None:
        """Tell of no wait any more."""
        self._end_wait()

    def _tell_long_wait(self) -> None:
        self._on_long_wait(str(self.state.as_doing(wall_clock())))

    def _end_wait(self) -> None:
        if self._long_wait is not None:
            self._long_wait.cancel()
            self._long_wait = None

    def _change(self, what: Activity, **values: Any) -> None:
        is_same = what is self.state.what and what is not Activity.WAITING
        since = self.state.since if is_same else wall_clock()
        self.state = RunState(what, since, self.state.restarts, **values)
        if self._write is None or not self._has_plan or self._is_queued:
            return
        self._is_queued = True
        try:
            self._disk.put(self._write_newest)
        except LauncherError:  # no thread is left; a run needs no state
            self._is_queued = False

    def _write_newest(self) -> None:
        self._is_queued = False  # before it is read: what changes now is queued again
        assert self._write is not None  # `_change` has looked
        self._write(self.state)
