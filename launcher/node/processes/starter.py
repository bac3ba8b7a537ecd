"""What the starters of ranks have in common: torchrun, a Python that has imported torch, and the shim.

A starter is the parent of the ranks. As long as guardian or supervisor lives, it only starts the ranks and reports each
start and exit to the named pipe `REPORTS` of the run's directory, where those for the ranks' output are, too. Stopping
the ranks is the task of those two, so it ignores SIGTERM, SIGHUP, SIGINT, what is for the ranks alone, and the signal
that holds a starter; torchrun has ways of its own. When both are gone, it takes the steps of the stop itself.

The shim is the starter of ranks that are plain commands, a fork of the supervisor. If it is killed, the kernel kills
its ranks, but not their children: a process can only ask for a signal at its parent's death. That is why ranks are not
children of the supervisor: when it dies, they may still save. Do not assume that each exit was reported: if a starter
is killed, the supervisor inherits its ranks and reaps them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress
from typing import Any, Callable, Iterable, NoReturn, Sequence

from launcher.node.processes import proc, stop_steps, workers
from launcher.node.processes.run_processes import RunProcesses, become_subreaper

IGNORED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, *proc.NOTICES, proc.HOLD)
REPORTS = "reports"
_CORE_DUMPED = 0x80  # in a status of wait(2)


class Starter:
    """Reports the ranks of this process until it is killed, or until the keepers are gone.

    It stays when its ranks have exited, since a daemon that they started may still live.
    """

    def __init__(self, marks: Iterable[str], folder: str, stop_timeout_s: float, keepers_fd: int) -> None:
        """keepers_fd: closes when the keepers are gone."""
        self.folder = folder
        self._stop_timeout_s = stop_timeout_s
        self.keepers_fd = keepers_fd
        self._owned = RunProcesses(None, [os.getpid()])
        self._owned.marks.update(marks)

    def open_streams(self, local_rank: int) -> dict[int, int]:
        """Return the descriptors for a rank's stdout and stderr, by their numbers there.

        They can be read, too: a rank that prints while it saves must not fail because the supervisor has been killed.
        """
        return {
            stream: os.open(os.path.join(self.folder, "%s.%d" % (name, local_rank)), os.O_RDWR)
            for stream, name in workers.STREAMS.items()
        }

    def add_rank(self, local_rank: int, pid: int) -> None:
        """Report a rank that this process has started."""
        stat = proc.read_stat(pid)
        assert stat is not None  # it is not reaped yet
        self._owned.add_rank(local_rank, proc.parse_stat(stat))
        self.report(rank=local_rank, stat=stat)

    def report(self, **fields: object) -> None:
        """Write a line of JSON to the supervisor, and wait for room in the pipe; if it is gone, nobody needs that.

        A line that is no longer than PIPE_BUF is written at once, or not at all: reports of several threads don't mix.
        """
        line = json.dumps(fields).encode() + b"\n"
        path = os.path.join(self.folder, REPORTS)
        with suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb", 0) as reports:
            line = line[reports.write(line) or 0 :]
            while line and self.keepers_fd not in select.select([self.keepers_fd], [reports], [])[0]:
                line = line[reports.write(line) or 0 :]

    def report_end(self, kind: int, pid: int, options: int = 0) -> tuple[int, int] | None:
        """Wait for a child's end as waitid(2) does, and report it; return process id and status, or None.

        The child isn't reaped: if this process is killed before it is, the exit is told twice instead of never.
        """
        try:
            ended = os.waitid(kind, pid, os.WEXITED | os.WNOWAIT | options)
        except ChildProcessError:
            return None
        if ended is None:
            return None
        status = ended.si_status << 8
        if ended.si_code != os.CLD_EXITED:
            status = ended.si_status | (_CORE_DUMPED if ended.si_code == os.CLD_DUMPED else 0)
        self.report(pid=ended.si_pid, status=status, ended_at=time.monotonic())
        return ended.si_pid, status

    def serve(self) -> NoReturn:
        """Report each exit; end the run when the keepers are gone."""
        wake_read = workers.watch_signals()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # whatever torch has imported
        self._reap()
        while self.keepers_fd not in select.select([wake_read, self.keepers_fd], [], [])[0]:
            os.read(wake_read, 4096)
            self._reap()
        self.end_run()

    def _reap(self) -> None:
        ended = self.report_end(os.P_ALL, 0, os.WNOHANG)
        while ended is not None:
            os.waitpid(ended[0], 0)
            ended = self.report_end(os.P_ALL, 0, os.WNOHANG)

    def end_run(self) -> NoReturn:
        """Take all steps of the stop; the keepers are gone."""
        steps = stop_steps.stop_run(self._owned, self._stop_timeout_s, lambda: workers.remove_folder(self.folder))
        stop_steps.take_steps(steps, beat=lambda: None)
        os._exit(0)


# ---- the shim --------------------------------------------------------------------------------------------------------


def start_shim(
    make: Callable[[], Starter], entries: Sequence[dict[str, Any]], env: dict[str, str], cwd: str | None,
    claim_fds: Sequence[int],
) -> workers.Child:  # fmt: skip
    """Fork a shim, which is the starter that `make` returns in it, and starts commands; return it.

    entries: of the launcher's START, each with rank, argv and an env that is added to `env`; claim_fds: the sockets of
    the run's claim, which lasts as long as the shim.
    """
    pid = workers.fork(death_signal=0, kept=claim_fds)
    if pid:
        return workers.Child(pid)
    try:
        own = make()
        # The supervisor's connection to the launcher must be able to end without this process.
        workers.drop_descriptors(own.keepers_fd, *claim_fds)
        become_subreaper()  # so that a daemon without the mark becomes its child
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        try:
            for entry in entries:
                streams = own.open_streams(entry["rank"])
                child = workers.spawn(entry["argv"], dict(env, **entry["env"]), cwd, {0: 0, **streams})
                for fd in streams.values():
                    os.close(fd)
                own.add_rank(entry["rank"], child.pid)
        except OSError as error:  # such as no more processes
            own.report(failure="start: %s" % error)
        own.serve()
    finally:
        os._exit(1)


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
