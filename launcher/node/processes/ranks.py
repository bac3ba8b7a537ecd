"""The ranks on this node, which a shim or torchrun starts; the launcher is told at once when one starts or exits."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Callable, Iterable

from launcher.node import messages
from launcher.node.loop import Loop
from launcher.node.processes import proc, shim, workers
from launcher.node.processes.handover_log import HandoverLog
from launcher.node.processes.oom_kills import PERIOD_S, OomKills
from launcher.node.processes.run_processes import RunProcesses
from launcher.node.processes.shim import ShimSpec
from launcher.node.processes.warm import WarmPython
from launcher.node.send_queue import SendQueue


class Ranks:
    """Watches the ranks of a run from their start to their exit codes, and reaps all children of the supervisor.

    The launcher gets one STARTED and then one EXIT for each rank whose process was seen, however many sources report
    its end; the output that is in its pipes by then is sent before the EXIT. As soon as one rank fails, the starter of
    the ranks is held, so that it ends no others: the launcher decides what happens next.

    Do not assume that an exit code is known: torchrun's ranks are not children of this process, and /proc may hide how
    they ended (None). Nor that there is an EXIT for each expected rank: torchrun may fail before it starts them, and a
    rank may be gone before its process is looked at. `seen` has such a rank too.
    """

    def __init__(
        self,
        loop: Loop,
        send_queue: SendQueue,
        handover_log: HandoverLog,
        owned: RunProcesses,
        on_ended: Callable[[], object],
    ) -> None:
        """Start with no ranks; on_ended: called when all ranks of a shim have ended."""
        self.seen: set[int] = set()  # local ranks that have started, if only for a moment
        self.ending_since: float | None = None  # by time.monotonic(): from then on the stop ends ranks, and the shim
        self.bind: Callable[[int, int], object] = lambda local_rank, pid: None  # to some CPUs
        self._loop = loop
        self._send_queue = send_queue
        self._handover_log = handover_log
        self._owned = owned
        self._on_ended = on_ended
        self._torchrun: workers.Child | None = None  # set while it still imports
        # Whether the starter reports each exit at once, as a shim and a warm Python do.
        self._tells_exits = False
        self._expected = 0  # how many ranks such a starter starts
        self._reports: int | None = None  # the descriptor for its reports, until it ends
        self._unfinished = b""  # the start of its last line
        self._fifo: int | None = None  # the descriptor for what torchrun and its ranks report
        self._on_started: Callable[[], object] = lambda: None  # for each rank that torchrun has started
        self._told: dict[int, int] = {}  # process id -> wait(2) status of what torchrun has reaped
        self._exited: set[int] = set()
        self._ended: dict[int, tuple[int, float]] = {}  # process id of a child, or the starter's -> how and when
        self._others: dict[int, Callable[[int], object]] = {}  # children that aren't ranks
        self._kills: OomKills | None = None  # set once a rank runs

    def set_torchrun(self, child: workers.Child | None) -> None:
        """Take the process that imports torchrun and will start the ranks."""
        self._torchrun = child
        if child is not None and child.process is not None:
            self._note_starter(child.process)

    def _note_starter(self, process: proc.Process) -> None:
        self._owned.set_starter(process)
        self._handover_log.note(rank=None, pid=process.pid, started=process.started)

    def start_processes(self, order: ShimSpec, keepers_fd: int) -> None:
        """Start plain commands as ranks, below a shim; keepers_fd: closes when guardian and supervisor are gone."""
        self._tells_exits, self._expected = True, len(order.entries)
        null = os.open(os.devnull, os.O_RDONLY)
        fds: dict[int, dict[int, int]] = {}
        readers = []
        for rank in [entry["rank"] for entry in order.entries]:
            fds[rank] = {0: null}
            for stream in (workers.STDOUT, workers.STDERR):
                read_end, fds[rank][stream] = os.pipe()
                workers.widen(read_end)
                self._send_queue.watch(read_end, rank, stream)
                readers.append(read_end)
        child, reports = shim.start(order, fds, readers, keepers_fd)
        for fd in {null}.union(*(streams.values() for streams in fds.values())):
            os.close(fd)
        if child.process is not None:
            self._note_starter(child.process)
        self._watch_starter(reports)

    def _watch_starter(self, reports: int) -> None:
        os.set_blocking(reports, False)
        self._reports = reports
        self._loop.watch(reports, self._read_starter)

    def await_warm(self, python: WarmPython) -> None:
        """Take the Python that imports torch and may start the ranks."""
        if python.child.process is not None:
            self._note_starter(python.child.process)

    def start_warm(self, python: WarmPython, run_folder: str, local_ranks: list[int], claim_fds: list[int]) -> None:
        """Let a Python that has imported torch start the ranks, as a shim does."""
        self._tells_exits, self._expected = True, len(local_ranks)
        self._watch_streams(run_folder, local_ranks)
        python.go(claim_fds)
        self._watch_starter(python.report_fd)

    def await_torchrun(self, folder: str, local_ranks: list[int], on_started: Callable[[], object]) -> None:
        """Open the FIFOs that torchrun's ranks will write to; `on_started` is called whenever a rank has started."""
        self._watch_streams(folder, local_ranks)
        self._fifo, self._on_started = workers.make_reports(folder), on_started
        self._loop.watch(self._fifo, self._read_torchrun)

    def _watch_streams(self, folder: str, local_ranks: Iterable[int]) -> None:
        for (local_rank, stream), fd in workers.make_streams(folder, local_ranks).items():
            self._send_queue.watch(fd, local_rank, stream)

    def await_exit(self, child: workers.Child, callback: Callable[[int], object]) -> None:
        """Call `callback(status)`, as wait(2) returns it, when a child that isn't a rank exits."""
        self._others[child.pid] = callback

    def reap(self) -> None:
        """Reap all children that have exited: helpers, torchrun, and ranks inherited from a killed starter."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._others:
                self._others.pop(pid)(status)
            if self._torchrun is not None and pid == self._torchrun.pid:
                self._meet_ends()
                self._send_queue.drain()
                self._send_queue.send(messages.ENDED, **workers.describe_status(status))
            self._take_end(pid, status, time.monotonic())  # of a starter that was killed, too
            if self._reports is not None and self._owned.starter is not None and pid == self._owned.starter.pid:
                while self._read_starter():
                    pass
                self._end_reports()

    def _take_end(self, pid: int, status: int, ended_at: float) -> None:
        """Report a rank's end; it is kept for one whose start is read only later, as while another's is taken in."""
        self._ended[pid] = status, ended_at
        for local_rank, process in self._owned.ranks.items():
            if process.pid == pid and local_rank not in self._exited:  # as it is if the starter died before it reaped
                self._report_exit(local_rank, status, ended_at)
                self._check_all_exited(status)

    def settle(self) -> None:
        """Record the exits of all ranks that are dead by now; the starter's last reports may still be in the pipe."""
        self.reap()
        if self._fifo is not None:
            self._meet_ends()
        while self._read_starter():
            pass

    def _read_starter(self) -> bool:
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
                self.seen.add(report["rank"])
                process = proc.parse_stat(report["stat"])
                self._own(report["rank"], process)
                if process.pid in self._ended:  # its end was read before, or it was inherited from a killed starter
                    self._take_end(process.pid, *self._ended[process.pid])
            else:
                self._take_end(report["pid"], report["status"], report["ended_at"])
        if not data:
            self._end_reports()
        return bool(data)

    def _end_reports(self) -> None:
        """Take no more reports: the starter has ended."""
        if self._reports is None:
            return
        self._loop.forget(self._reports)
        os.close(self._reports)
        self._reports = None
        if len(self._exited) < self._expected and self.ending_since is None:
            self._send_queue.send(messages.FAILED, text="the helper that starts the ranks was killed")
            self.ending_since = time.monotonic()  # the kernel kills its ranks now, which isn't their fault

    def _read_torchrun(self) -> None:
        """Process what torchrun and its ranks have reported; another starter reports elsewhere."""
        if self._fifo is None:
            return
        try:
            data = os.read(self._fifo, 1 << 16)
        except BlockingIOError:
            return
        reports = [line.split() for line in data.splitlines()]
        for _, pid, status in [words for words in reports if len(words) == 3]:
            self._told[int(pid)] = int(status)
        for local_rank, pid in [words for words in reports if len(words) == 2]:
            self._on_started()
            self.seen.add(int(local_rank))
            process = proc.read_process(int(pid))
            if process is not None:
                self._own(int(local_rank), process)
            else:
                self._report_reaped(int(local_rank), int(pid))

    def _report_reaped(self, local_rank: int, pid: int) -> None:
        """Report a rank of torchrun that was gone before it could be looked at, if torchrun told how it ended."""
        self._read_torchrun()
        if pid in self._told:
            self._send_queue.send(messages.STARTED, local_rank=local_rank, pid=pid)
            self._report_exit(local_rank, self._told[pid], time.monotonic())

    def _own(self, local_rank: int, process: proc.Process) -> None:
        self.bind(local_rank, process.pid)
        self._owned.add_rank(local_rank, process)
        self._watch_memory()
        self._handover_log.note(rank=local_rank, pid=process.pid, started=process.started)
        self._send_queue.send(messages.STARTED, local_rank=local_rank, pid=process.pid)
        pidfd = workers.open_pidfd(process)
        if pidfd is None:
            self._look_again(local_rank, process)
        else:
            self._loop.watch(pidfd, lambda: self._meet_end(local_rank, process, pidfd))

    def _look_again(self, local_rank: int, process: proc.Process) -> None:
        if proc.is_alive(process):
            pause_s = 1.0 if self._tells_exits else 0.05
            self._loop.call_later(pause_s, lambda: self._look_again(local_rank, process))
        else:
            self._take_seen_end(local_rank, process, time.monotonic())

    def _meet_end(self, local_rank: int, process: proc.Process, pidfd: int) -> None:
        self._loop.forget(pidfd)
        os.close(pidfd)
        ended_at = time.monotonic()
        self.reap()
        self._take_seen_end(local_rank, process, ended_at)

    def _take_seen_end(self, local_rank: int, process: proc.Process, ended_at: float) -> None:
        """Report a rank that was seen to end; a starter that tells exits may still be about to, unless it is suspended.

        Its report is exact, while /proc may hide how the rank ended. If it is ending itself, that is told first.
        """
        if self._tells_exits:
            while self._read_starter():
                pass
            starter = self._owned.find_starter()
            is_suspended = starter is not None and starter.state in proc.SUSPENDED
            if local_rank not in self._exited and self._reports is not None and not is_suspended:
                self._loop.call_later(0.05, lambda: self._take_seen_end(local_rank, process, ended_at))
                return
        if local_rank not in self._exited:
            status = self._find_status(process)
            self._report_exit(local_rank, status, ended_at)
            self._check_all_exited(status)

    def _meet_ends(self) -> None:
        """Report the ranks that have ended, so that their exits come before the end of torchrun."""
        self._read_torchrun()  # of ranks that it has just started, too
        for local_rank, process in list(self._owned.ranks.items()):
            if local_rank not in self._exited and not proc.is_alive(process):
                self._report_exit(local_rank, self._find_status(process), time.monotonic())

    def _find_status(self, process: proc.Process) -> int | None:
        """Return the wait(2) status of a rank of torchrun: from /proc or, once it is reaped, as torchrun told it."""
        status = workers.read_exit_status(process)
        if not status:
            self._read_torchrun()
            status = self._told.get(process.pid, status)
        return status

    def _report_exit(self, local_rank: int, status: int | None, ended_at: float) -> None:
        if local_rank in self._exited:
            return
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

    def _watch_memory(self) -> None:
        if self._kills is None:
            self._kills = OomKills()
            self._forget_old_kills()

    def _forget_old_kills(self) -> None:
        assert self._kills is not None  # a rank runs
        self._kills.forget()
        self._loop.call_later(PERIOD_S, self._forget_old_kills)

    def _judge_kill(self, ending: dict[str, Any]) -> str | None:
        """Judge whether the kernel killed a rank because memory ran out; a shell exits with 137 for a killed child."""
        is_kill = ending["signal"] == signal.SIGKILL or ending["code"] == 128 + signal.SIGKILL
        return self._kills.judge() if is_kill and self._kills is not None else None

    def _check_all_exited(self, status: int | None) -> None:
        if self._tells_exits and len(self._exited) == self._expected:
            self._send_queue.send(messages.ENDED, **workers.describe_status(status))
            self._on_ended()
