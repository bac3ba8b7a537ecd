"""The ranks on this node, whatever starts them; the launcher is told at once when one starts or exits.

What the guardian needs if the supervisor dies is noted for it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from typing import Any, Callable, Iterable

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import numa, proc, starter, workers
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.send_queue import SendQueue
from launcher.node.system import read_rows

_FORGET_KILLS_S = 15.0


class HandoverLog:
    """The writing end of a pipe that the guardian reads after the supervisor's death; if it is full, notes are lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def note(self, **entry: object) -> None:
        """Write one entry, a line of JSON, without waiting."""
        with suppress(OSError):  # the guardian is dead, which the supervisor is about to notice
            os.write(self._fd, json.dumps(entry).encode() + b"\n")


class Ranks:
    """Watches the ranks of a run from their start to their exit codes, and reaps all children of the supervisor.

    The launcher gets one STARTED and then one EXIT for each rank, however often its end is told; the output that is in
    its pipes by then is sent before the EXIT. As soon as one rank fails, the starter of the ranks is held, so that it
    ends no others: the launcher decides what happens next.

    The starter reports each start and each end (`starter`). If it is killed, this process inherits its ranks, as a
    subreaper. Do not assume that there is an EXIT for each expected rank: the starter may fail before it starts them.
    """

    def __init__(
        self,
        loop: Loop,
        send_queue: SendQueue,
        handover_log: HandoverLog,
        owned: RunProcesses,
        on_ended: Callable[[], object],
    ) -> None:
        """Start with no ranks; on_ended: called when all ranks have ended."""
        self.seen: set[int] = set()  # local ranks that have started, if only for a moment
        self.ending_since: float | None = None  # by time.monotonic(): from then on the stop ends ranks, and the starter
        self.cpus: list[set[int]] = []  # of each rank, if they are given
        self._loop = loop
        self._send_queue = send_queue
        self._handover_log = handover_log
        self._owned = owned
        self._on_ended = on_ended
        self._torchrun: workers.Child | None = None  # if it is the starter
        self._expected = 0  # how many ranks the starter starts
        self._reports: int | None = None  # the descriptor for the starter's reports, until it ends
        self._unfinished = b""  # the start of its last line
        self._on_started: Callable[[], object] = lambda: None  # for each rank that has started
        self._exited: set[int] = set()
        self._ended: dict[int, tuple[int, float]] = {}  # a rank's, or an orphan's, by process id: how and when
        self._is_over = False  # the launcher knows that no rank lives, or that torchrun has ended
        self._others: dict[int, Callable[[int], object]] = {}  # children that aren't ranks
        self._oom_kills: int | None = None  # that are of no concern; counted once a rank runs
        self.vmstat = "/proc/vmstat"

    def set_torchrun(self, child: workers.Child | None) -> None:
        """Take the process that imports torchrun and will start the ranks."""
        self._torchrun = child
        if child is not None:
            self.set_starter(child)

    def set_starter(self, child: workers.Child) -> None:
        """Take what starts the ranks, or will."""
        if child.process is not None:
            self._owned.starter = child.process
            self._handover_log.note(rank=None, pid=child.pid, started=child.process.started)

    def expect(self, folder: str, local_ranks: Iterable[int], on_started: Callable[[], object] = lambda: None) -> None:
        """Make the pipes for ranks that will be started, in the run's directory, and watch them.

        on_started: called whenever a rank has started.
        """
        self._on_started = on_started
        self._ended.clear()  # their process ids may become those of ranks
        # Open for reading and writing, it never reaches its end, whatever the writers do. It comes first, while the
        # user's pipe quota lasts: it is to have room for the reports of all ranks that end at once.
        self._reports = workers.make_pipe(folder, starter.REPORTS, os.O_RDWR)
        self._loop.watch(self._reports, self._read_reports)
        for local_rank in local_ranks:
            self._expected += 1
            for stream, name in workers.STREAMS.items():
                fd = workers.make_pipe(folder, "%s.%d" % (name, local_rank), os.O_RDONLY)
                self._send_queue.watch(fd, local_rank, stream)

    def await_exit(self, child: workers.Child, callback: Callable[[int], object]) -> None:
        """Call `callback(status)`, as wait(2) returns it, when a child that isn't a rank exits."""
        self._others[child.pid] = callback

    def reap(self) -> None:
        """Reap all children that have exited: helpers, the starter, and ranks inherited from a killed one."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            is_starter = self._owned.starter is not None and pid == self._owned.starter.pid
            is_other = pid in self._others
            if is_other:
                self._others.pop(pid)(status)
            if is_starter:
                self._meet_starters_end(status)
            if not is_other and not is_starter:
                self._take_end(pid, status, time.monotonic())

    def _meet_starters_end(self, status: int) -> None:
        is_torchrun = self._torchrun is not None
        if self._reports is None and not is_torchrun:  # a Python that has refused to start the ranks
            return
        self.settle_reports()
        if self._reports is not None:
            self._loop.forget(self._reports)
            os.close(self._reports)
            self._reports = None
        if self._is_over:
            return
        if is_torchrun:
            self._send_queue.drain()
            self._tell_over(status)
        elif self.ending_since is None:
            ending = workers.describe_status(status)
            # A code says less than the text of a warm Python that has reported why it exits.
            killed = dict(ending, oom=self._judge_kill(ending)) if ending["signal"] else None
            text = "the helper that starts the ranks was killed"
            self._send_queue.send(messages.FAILED, text=text, supervisor=killed)
            self.ending_since = time.monotonic()  # the kernel kills its ranks now, which isn't their fault

    def _take_end(self, pid: int, status: int, ended_at: float) -> None:
        """Report a rank's end; it is kept for one whose start is read only later, as while another's is taken in."""
        known = [local_rank for local_rank, process in self._owned.ranks.items() if process.pid == pid]
        for local_rank in known:
            if local_rank not in self._exited:  # as it is if the starter died before it reaped
                self._report_exit(local_rank, status, ended_at)
        if not known:
            self._ended[pid] = status, ended_at

    def settle(self) -> None:
        """Record the exits of all ranks that have been told by now."""
        self.reap()
        self.settle_reports()

    def settle_reports(self) -> None:
        """Read all that the starter has reported."""
        while self._read_reports():
            pass

    def _read_reports(self) -> bool:
        """Process what the starter has reported; tell whether there was anything."""
        if self._reports is None:
            return False
        try:
            data = os.read(self._reports, 1 << 16)
        except BlockingIOError:
            return False
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for report in map(json.loads, [line.decode() for line in lines]):
            if "failure" in report:
                self._send_queue.send(messages.FAILED, text=report["failure"])
            elif "stat" in report:
                self._on_started()
                self.seen.add(report["rank"])
                process = proc.parse_stat(report["stat"])
                self._own(report["rank"], process)
                if process.pid in self._ended:  # its end was read before, or it was inherited from a killed starter
                    self._take_end(process.pid, *self._ended.pop(process.pid))
            else:
                self._take_end(report["pid"], report["status"], report["ended_at"])
        return True

    def _own(self, local_rank: int, process: proc.Process) -> None:
        if local_rank < len(self.cpus):
            numa.bind(process.pid, self.cpus[local_rank])
        self._owned.add_rank(local_rank, process)
        if self._oom_kills is None:
            self._count_kills()
        self._handover_log.note(rank=local_rank, pid=process.pid, started=process.started)
        self._send_queue.send(messages.STARTED, local_rank=local_rank, pid=process.pid)

    def _report_exit(self, local_rank: int, status: int, ended_at: float) -> None:
        self._exited.add(local_rank)
        if status and self._owned.starter is not None:
            # torchrun would print its report and kill the other ranks; the launcher decides what happens next.
            proc.send_signal(self._owned.starter, proc.HOLD)
        self._send_queue.drain(lambda rank: rank == local_rank)
        age_s = round(time.monotonic() - ended_at, 4)
        ending = workers.describe_status(status)
        oom = self._judge_kill(ending)
        # Only this host knows in which order it was told to stop and the rank ended.
        was_stopping = self.ending_since is not None and ended_at >= self.ending_since
        self._send_queue.send(
            messages.EXIT, local_rank=local_rank, age_s=age_s, was_stopping=was_stopping, oom=oom, **ending
        )
        if len(self._exited) == self._expected:
            self._tell_over(status)
            self._on_ended()

    def _tell_over(self, status: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._send_queue.send(messages.ENDED, **workers.describe_status(status))

    def _count_kills(self) -> None:
        """Disregard what the kernel has killed so far, such as a process of somebody else."""
        self._oom_kills = self._read_kills()
        self._loop.call_later(_FORGET_KILLS_S, self._count_kills)

    def _judge_kill(self, ending: dict[str, Any]) -> str | None:
        """Return `probable` if the kernel has killed a process for lack of memory lately; that explains one end only.

        It counts each of this machine, in any container, before it sends the signal. A shell exits with 137 for a
        killed child.
        """
        is_kill = ending["signal"] == signal.SIGKILL or ending["code"] == 128 + signal.SIGKILL
        if not is_kill or self._oom_kills is None or self._read_kills() <= self._oom_kills:
            return None
        self._oom_kills += 1
        return "probable"

    def _read_kills(self) -> int:
        """Return 0 if the kernel doesn't count them, as before Linux 4.13."""
        return next((int(row[1]) for row in read_rows(self.vmstat) if row[0] == "oom_kill"), 0)
