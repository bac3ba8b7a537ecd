"""The shim: the starter of ranks that are plain commands.

It is a fork of the supervisor. It closes the supervisor's connection, which must be able to end without it, but keeps
the reading ends of the ranks' pipes: otherwise a rank that prints while it saves would fail.

If the shim itself is killed, the kernel kills its ranks, but not their children: a process can only ask for a signal
at its parent's death. That is why ranks are not children of the supervisor: when it dies, they may still save. Do not
assume that a report arrives, or that each exit was reported: if the shim is killed, the supervisor inherits the ranks
and reaps them.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple, NoReturn, Sequence

from launcher.node.processes import starter, workers
from launcher.node.processes.starter import Starter


class ShimSpec(NamedTuple):
    """What a shim starts, and what it must know to stop the run without the supervisor."""

    entries: Sequence[dict[str, Any]]  # of the launcher's START, each with rank, argv and an env that is added to `env`
    env: dict[str, str]
    cwd: str | None
    marks: set[str]
    folder: str
    stop_timeout_s: float
    claim_fds: Sequence[int]  # the sockets of the run's claim, which lasts as long as the shim


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
        for number in starter.IGNORED:
            signal.signal(number, signal.SIG_IGN)
        _run(order, streams, keepers_fd, report_write)
    finally:
        os._exit(1)


def _run(
    order: ShimSpec, streams: dict[int, dict[int, int]], keepers_fd: int, report_fd: int
) -> NoReturn:  # fmt: skip
    """Start the commands, and be their starter."""
    own = Starter(order.marks, order.folder, order.stop_timeout_s, report_fd, keepers_fd)
    try:
        for entry in order.entries:
            env = dict(order.env, **entry["env"])
            own.add_rank(entry["rank"], workers.spawn(entry["argv"], env, order.cwd, streams[entry["rank"]]).pid)
    except OSError as error:  # such as no more processes
        starter.report(report_fd, failure="start: %s" % error)
    for fd in {fd for fds in streams.values() for fd in fds.values()}:
        os.close(fd)
    own.serve()
