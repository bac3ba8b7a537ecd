"""The end of an attempt on this node: the steps that stop its processes, and what is left of it and of earlier runs."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any, Callable, Generator, List

from launcher.node import messages
from launcher.node.loop import Loop, Timer
from launcher.node.processes import proc, run_folders, stop_steps, workers
from launcher.node.processes.ranks import Ranks
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.send_queue import SendQueue

StopSteps = Generator[float, None, List[proc.Process]]


REMOVAL_TIMEOUT_S = 60.0  # for directories of earlier runs


class Ending:
    """How an attempt ends: it is stopped, counted and over, in this order; each of them begins once.

    A later reason to stop changes nothing, unless it gives the ranks no time to save before they are counted; then the
    steps start over with the kill. `on_end` is called whenever there is a reason, and `on_counted` once, with what is
    left and more fields of the census, when nothing is done any more but to tell that; `finish` then makes it over.
    """

    def __init__(
        self, loop: Loop, send_queue: SendQueue, ranks: Ranks, owned: RunProcesses, guardian: int,
        clock: Callable[[], Callable[[], float]], on_end: Callable[[], object],
        on_counted: Callable[[list[proc.Process], dict[str, Any]], object],
    ) -> None:  # fmt: skip
        """guardian: its process id; clock: returns the one that measures the stop."""
        self._loop = loop
        self._send_queue = send_queue
        self._ranks = ranks
        self._owned = owned
        self._guardian = guardian
        self._clock = clock
        self._on_end = on_end
        self._on_counted = on_counted
        self.reason: str | None = None  # why the run is being stopped, if the launcher did not ask for it
        self.folder = ""  # of this attempt, once it is prepared
        self.stop_timeout_s = 15.0
        self.stays = False  # with its claim, for the next attempt
        self.files: list[tuple[str, bytes]] | None = None  # what ranks left in the directory, once they have ended
        self.is_over = False
        self._is_counted = False
        self._uncopied: list[tuple[str, str]] = []  # what else they left there, with the reasons
        self._steps: StopSteps | None = None  # set once it is being stopped
        self._timer: Timer | None = None
        # What is left of earlier runs, to be removed at the end, too; None: that wasn't asked for.
        self._leftovers: list[str] | None = None
        self._lost_folder: str | None = None  # of another supervisor that lost its launcher; this one stops its run
        self._lost_keepers: list[proc.Process] = []  # that supervisor and its guardian

    @property
    def has_begun(self) -> bool:
        """Whether the attempt is being stopped."""
        return self._steps is not None

    def take_over(self, folder: str | None, keepers: list[list[int]]) -> None:
        """Count what these keepers, by process id and start time, have started as part of the run that is to end.

        They may be of this run, on a connection that is lost; then it has another directory, too.
        """
        self._lost_folder = folder or self._lost_folder
        for pid, started in keepers:
            keeper = proc.read_process(pid)
            if keeper is not None and keeper.started == started:
                self._lost_keepers.append(keeper)
                self._owned.keepers.add(pid)  # its helpers have no mark

    def adopt(self, header: dict[str, Any], _: bytes) -> None:
        """Count the leftover processes of earlier runs as this run's, so that the next STOP stops them too.

        After that, the directories of these runs are removed.
        """
        self._owned.marks.update(header["marks"])
        self._owned.born = 0
        self._leftovers = header.get("folders", [])

    def stop(self, header: dict[str, Any], _: bytes) -> None:
        """Serve a STOP."""
        self.stays = header.get("stays", False)
        self.begin("launch requested it", header["timeout_s"], header.get("wait_s", 0))

    def fail(self, error: OSError) -> None:
        """Stop the run since a callback of the loop has failed, such as for want of processes.

        If it is being stopped, `error` is raised, and the guardian ends the run.
        """
        if self.has_begun:
            raise error
        self.begin("its helper failed: %s" % error)

    def begin(self, reason: str, timeout_s: float | None = None, wait_s: float = 0) -> None:
        """Begin to stop the run; later calls change nothing, except that a `timeout_s` of 0 kills at once.

        timeout_s: how long the ranks may take to save. None: take PREPARE's value, and tell the launcher the reason.
        """
        if timeout_s is None:
            timeout_s = self.stop_timeout_s
            self.reason = self.reason or reason
            workers.complain("stopping the run: %s" % reason)
            if not self.has_begun and not self.is_over:  # sent before the exits that it causes
                self._send_queue.send(messages.FAILED, text=reason)
        self._on_end()
        if self._is_counted or self.is_over or (self.has_begun and timeout_s > 0):
            return
        self._ranks.ending_since = self._ranks.ending_since or time.monotonic()
        self._steps = stop_steps.stop_run(self._owned, timeout_s, self._take_files, wait_s, self._clock())
        self._loop.cancel(self._timer)
        self._step()

    def _step(self) -> None:
        assert self._steps is not None  # the stop has begun
        self._timer = None
        try:
            pause = next(self._steps)
        except StopIteration as end:
            self._count(end.value)
        else:
            self._timer = self._loop.call_later(pause, self._step)

    def _count(self, left: list[proc.Process]) -> None:
        """Remove what is over; what was adopted may take long to remove."""
        self._is_counted = True
        # The directory is still there if something is left of the run: `launch clean` needs it. A cleaner's own goes.
        self._take_files((self._lost_folder or self.folder) if self._leftovers is None else None)
        self._send_queue.drain()
        self._wake_guardian()
        if self._leftovers is None:
            self._report(left, {})
            return
        remove = partial(run_folders.remove_folders, self._leftovers)
        late = [[name, "it could not be removed in %g s" % REMOVAL_TIMEOUT_S] for name in self._leftovers]
        self._loop.ask(remove, REMOVAL_TIMEOUT_S, late, lambda found: self._report(left, {"folders": found}))

    def _report(self, left: list[proc.Process], fields: dict[str, Any]) -> None:
        if self._uncopied:
            fields.update(uncopied=self._uncopied[: messages.MOST_NAMES], uncopied_count=len(self._uncopied))
        self._on_counted(left, fields)

    def finish(self) -> None:
        """Serve nothing any more."""
        self.is_over = True

    def _wake_guardian(self) -> None:
        """Continue this supervisor's guardian: if stopped by SIGSTOP, it would never exit."""
        if os.getppid() == self._guardian:  # otherwise it is dead, and its process id may be reused
            os.kill(self._guardian, signal.SIGCONT)

    def _take_files(self, kept: str | None = None) -> None:
        """Take in what the ranks have left, and remove the run's directories but the one to be kept; only once."""
        if self.files is not None:
            return
        self._ranks.settle()  # torchrun reports exits through the directory
        for keeper in self._lost_keepers:  # stopped by SIGSTOP, they would never exit
            proc.send_signal(keeper, signal.SIGKILL)
        self.files = []
        if self.folder:
            self.files, self._uncopied = workers.read_files(os.path.join(self.folder, workers.FILES))
        for folder in (self.folder, self._lost_folder):
            if folder and folder != kept:
                workers.remove_folder(folder)
