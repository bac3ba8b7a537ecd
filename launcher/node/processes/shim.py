"""The shim: the parent of ranks that are plain commands; it stops the run if guardian and supervisor are both killed.

It is a fork of the supervisor. For the stop's steps it is, like torchrun, the starter of the ranks, which is killed
last. As long as guardian or supervisor lives, it only starts the ranks and reports each start and exit. Stopping them
is the task of those two, so it ignores SIGTERM, SIGHUP, SIGINT and the signal that holds a starter. It stays when its
ranks have exited, since a daemon that they started may still live. It closes the supervisor's connection, which must be
able to end without it, but keeps the reading ends of the ranks' pipes: otherwise a rank that prints while it saves
would fail.

If the shim itself is killed, the kernel kills its ranks, but not their children: a process can only ask for a signal
at its parent's death. That is why ranks are not children of the supervisor: when it dies, they may still save. Do not
assume that a report arrives, or that each exit was reported: if the shim is killed, the supervisor inherits the ranks
and reaps them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, NoReturn, Sequence

from launcher.node.loop import Loop
from launcher.node.processes import proc, stop_steps, workers
from launcher.node.processes.run_processes import RunProcesses, become_subreaper

_CORE_DUMPED = 0x80  # in a status of wait(2)


class ShimSpec:
    """What a shim starts, and what it must know to stop the run without the supervisor."""

    def __init__(
        self, entries: list[dict[str, Any]], env: dict[str, str], cwd: str | None, *, marks: set[str], folder: str,
        stop_timeout_s: float, claim_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """entries: those of the launcher's START, each with rank, argv and an env that is added to `env`.

        claim_fds: the sockets of the run's claim, which lasts as long as the shim.
        """
        self.entries = entries
        self.env = env
        self.cwd = cwd
        self.marks = marks
        self.folder = folder
        self.stop_timeout_s = stop_timeout_s
        self.claim_fds = claim_fds


def start(
    order: ShimSpec, streams: dict[int, dict[int, int]], readers: list[int], keepers_fd: int
) -> tuple[workers.Child, int]:
    """Fork a shim; return it, and the descriptor on which it reports starts and exits as lines of JSON.

    streams: this process's descriptors for each rank, by their numbers in the rank; readers: the reading ends of the
    ranks' pipes; keepers_fd: closes when guardian and supervisor are gone.
    """
    report_read, report_write = os.pipe()
    pid = workers.fork(death_signal=0, kept=order.claim_fds)
    if pid:
        os.close(report_write)
        return workers.Child(pid), report_read
    try:
        kept = {fd for fds in streams.values() for fd in fds.values()}
        workers.drop_descriptors(keepers_fd, report_write, *readers, *order.claim_fds, *kept)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, proc.HOLD):  # stopping is for the keepers
            signal.signal(number, signal.SIG_IGN)
        _Shim(order, streams, keepers_fd, report_write).run()
    finally:
        os._exit(1)


class _Shim:
    def __init__(self, order: ShimSpec, streams: dict[int, dict[int, int]], keepers_fd: int, report_fd: int) -> None:
        self._order = order
        self._streams = streams
        self._keepers_fd = keepers_fd
        self._report_fd = report_fd
        self._owned = RunProcesses(None, [os.getpid()])
        self._owned.marks.update(order.marks)

    def run(self) -> NoReturn:
        """Start the commands and report each exit, until this process is killed or the keepers are gone."""
        become_subreaper()  # so that a daemon without the mark becomes its child
        loop = Loop()
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            for entry in self._order.entries:
                self._start(entry)
        except OSError as error:  # such as no more processes
            self._report(failure="start: %s" % error)
        for fd in {fd for fds in self._streams.values() for fd in fds.values()}:
            os.close(fd)
        loop.watch(self._keepers_fd, self._end_run)
        loop.watch(wake_read, lambda: self._wake(wake_read))
        self._reap()
        while True:
            loop.run_once()

    def _start(self, entry: dict[str, Any]) -> None:
        env = dict(self._order.env, **entry["env"])
        child = workers.spawn(entry["argv"], env, self._order.cwd, self._streams[entry["rank"]])
        stat = proc.read_stat(child.pid)
        assert stat is not None  # it is not reaped yet
        self._owned.add_rank(entry["rank"], proc.parse_stat(stat))
        self._report(rank=entry["rank"], stat=stat)

    def _wake(self, fd: int) -> None:
        os.read(fd, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return  # the shim stays: a daemon of its ranks may still live, and the stop ends the shim last
            if ended is None:
                return
            # Report before reaping: if the shim is killed in between, the exit is reported twice instead of never.
            self._report(pid=ended.si_pid, status=_wait_status(ended), ended_at=time.monotonic())
            os.waitpid(ended.si_pid, 0)

    def _report(self, **fields: object) -> None:
        try:
            os.write(self._report_fd, json.dumps(fields).encode() + b"\n")
        except OSError:
            pass  # the supervisor is gone, and the guardian doesn't need exit codes

    def _end_run(self) -> NoReturn:
        order = self._order
        steps = stop_steps.stop_run(self._owned, order.stop_timeout_s, lambda: workers.remove_folder(order.folder))
        stop_steps.take_steps(steps, beat=lambda: None)
        os._exit(0)


def _wait_status(ended: os.waitid_result) -> int:
    """Return the status that wait(2) would return for the same exit."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (_CORE_DUMPED if ended.si_code == os.CLD_DUMPED else 0)
