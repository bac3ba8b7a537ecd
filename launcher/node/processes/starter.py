"""What the starters of ranks have in common: the shim, a Python that has imported torch, and torchrun.

A starter is the parent of the ranks. As long as guardian or supervisor lives, it only starts the ranks and reports each
start and exit. Stopping them is the task of those two, so it ignores SIGTERM, SIGHUP, SIGINT, what is for the ranks
alone, and the signal that holds a starter. When both are gone, it takes the steps of the stop itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Iterable, NoReturn

from launcher.node.processes import proc, stop_steps, workers
from launcher.node.processes.run_processes import RunProcesses, become_subreaper

KEEPERS_FD = 4  # of torchrun and a warm Python; closes when guardian and supervisor are gone
IGNORED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, *proc.NOTICES, proc.HOLD)
_CORE_DUMPED = 0x80  # in a status of wait(2)


class Starter:
    """Reports the ranks of this process until it is killed, or until the keepers are gone.

    It stays when its ranks have exited, since a daemon that they started may still live.
    """

    def __init__(
        self, marks: Iterable[str], folder: str, stop_timeout_s: float, report_fd: int, keepers_fd: int
    ) -> None:
        """report_fd: gets each start and exit, as a line of JSON; keepers_fd: closes when the keepers are gone."""
        self._folder = folder
        self._stop_timeout_s = stop_timeout_s
        self._report_fd = report_fd
        self._keepers_fd = keepers_fd
        self._owned = RunProcesses(None, [os.getpid()])
        self._owned.marks.update(marks)
        become_subreaper()  # so that a daemon without the mark becomes its child

    def add_rank(self, local_rank: int, pid: int) -> None:
        """Report a rank that this process has started."""
        stat = proc.read_stat(pid)
        assert stat is not None  # it is not reaped yet
        self._owned.add_rank(local_rank, proc.parse_stat(stat))
        report(self._report_fd, rank=local_rank, stat=stat)

    def serve(self) -> NoReturn:
        """Report each exit; end the run when the keepers are gone."""
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # whatever torch has imported
        self._reap()
        while self._keepers_fd not in select.select([wake_read, self._keepers_fd], [], [])[0]:
            os.read(wake_read, 4096)
            self._reap()
        end_run(self._owned, self._folder, self._stop_timeout_s)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            # Report before reaping: if this process is killed in between, the exit is told twice instead of never.
            report(self._report_fd, pid=ended.si_pid, status=wait_status(ended), ended_at=time.monotonic())
            os.waitpid(ended.si_pid, 0)


def report(fd: int, **fields: object) -> None:
    """Write a line of JSON to the supervisor; if it is gone, nobody needs that."""
    try:
        os.write(fd, json.dumps(fields).encode() + b"\n")
    except OSError:
        pass


def wait_status(ended: os.waitid_result) -> int:
    """Return the status that wait(2) would return for the same exit."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (_CORE_DUMPED if ended.si_code == os.CLD_DUMPED else 0)


def end_run(owned: RunProcesses, folder: str, stop_timeout_s: float) -> NoReturn:
    """Take all steps of the stop; the keepers are gone."""
    steps = stop_steps.stop_run(owned, stop_timeout_s, lambda: workers.remove_folder(folder))
    stop_steps.take_steps(steps, beat=lambda: None)
    os._exit(0)


# ---- the order of a starter that is a program of its own -------------------------------------------------------------


def read_order(fd: int) -> dict[str, Any] | None:
    """Wait for the order, a line of JSON; None: the supervisor is gone."""
    with os.fdopen(os.dup(fd), "rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):  # it was cut short
        return None
    order: dict[str, Any] = json.loads(line.decode())
    return order


def encode(text: str) -> bytes:
    """Return the bytes that the supervisor means: it reads all as UTF-8, whatever the encoding is here."""
    return text.encode("utf-8", "surrogateescape")


def as_path(text: str) -> str:
    """Return a path of the supervisor's as it is written here."""
    return os.fsdecode(encode(text))


def add_to_environment(env: dict[str, str]) -> None:
    """Set variables as the supervisor means them."""
    os.environb.update({encode(name): encode(value) for name, value in env.items()})
