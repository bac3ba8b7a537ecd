"""The process that becomes torchrun on a node.

It is the parent of the ranks, and stops the run if guardian and supervisor are both killed. As long as one of them
lives, stopping the ranks is their task. They hold torchrun by a signal, and the kernel sends the same one when the
supervisor dies. While it is held, its main thread waits in the handler and ignores SIGTERM, so neither a rank's exit
nor Slurm makes it stop the other ranks; it never continues from there. When both are gone, another thread takes the
steps that they would have taken: torchrun's own shutdown would take 30 s if a rank ignores SIGTERM.

It is not held by SIGSTOP: a suspended process does not get what the kernel sends, and node 0's store would not respond
while ranks save together. Do not assume that a signal reaches Python code at once: the main thread may wait in C++ for
other nodes. What the other thread runs is imported before: the main thread may be held in the middle of an import.

A rank is a child of torchrun, which reaps ten times a second: a supervisor that looks a moment too late finds nothing
in /proc, and torchrun ends the other ranks. So this program wraps Popen.poll, which torchrun calls for its ranks, in
its main thread (SubprocessContext in torch/distributed/elastic/multiprocessing/api.py): it reports how a rank ended
before it is reaped, and holds itself if the rank failed. What names the run's directory in its argv is a rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any, NoReturn

from launcher.node.processes import proc, starter, workers
from launcher.node.processes.run_processes import RunProcesses, read_children

_ORDER_FD = 0


def main(stop_timeout_s: float) -> None:
    """Import torchrun, and run it once the order comes; stop_timeout_s: how long the ranks may save."""
    folder = os.path.dirname(os.environ[proc.FILES])
    owned = RunProcesses(os.environ[proc.MARK], [os.getpid()])
    signal.signal(proc.HOLD, _hold)
    for number in proc.NOTICES:  # a handler, unlike SIG_IGN, is not inherited by the ranks
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_keepers, args=(owned, folder, stop_timeout_s), daemon=True).start()
    _tell_ends(folder)
    from torch.distributed import run

    workers.take_passed(_ORDER_FD)  # the sockets of the run's claim, which lasts as long as this process
    order = starter.read_order(_ORDER_FD)
    if order is None:
        return
    os.environ.clear()
    starter.add_to_environment(order["env"])
    os.chdir(starter.as_path(order["cwd"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), _ORDER_FD)
    run.main(list(map(starter.as_path, order["argv"])))


def _hold(*_: object) -> NoReturn:
    """Do nothing more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def _end_with_keepers(owned: RunProcesses, folder: str, stop_timeout_s: float) -> NoReturn:
    os.read(starter.KEEPERS_FD, 1)
    os.kill(os.getpid(), proc.HOLD)  # as the kernel did at the supervisor's death, if that could call prctl
    for number, process in enumerate(filter(None, map(proc.read_process, read_children()))):
        owned.add_rank(number, process)
    starter.end_run(owned, folder, stop_timeout_s)


def _tell_ends(folder: str) -> None:
    """Let torchrun tell how a rank has ended before it reaps it."""
    reap = subprocess.Popen.poll

    def poll(process: subprocess.Popen[Any]) -> int | None:
        is_rank = isinstance(process.args, (list, tuple)) and folder in process.args
        if is_rank and process.returncode is None:
            _tell_end(folder, process.pid)
        return reap(process)

    subprocess.Popen.poll = poll  # type: ignore[method-assign, assignment]


def _tell_end(folder: str, pid: int) -> None:
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    if ended is None:
        return
    status = starter.wait_status(ended)
    try:
        with open(os.open(os.path.join(folder, "ranks"), os.O_WRONLY | os.O_NONBLOCK), "wb", 0) as reports:
            reports.write(b"ended %d %d\n" % (pid, status))
    except OSError:  # the supervisor is gone
        pass
    if status:
        _hold()
