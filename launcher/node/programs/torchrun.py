"""The process that becomes torchrun on a node.

It is the parent of the ranks, and stops the run if guardian and supervisor are both killed. As long as one of them
lives, stopping the ranks is their task. They hold torchrun by a signal, and the kernel sends the same one when the
supervisor dies. While it is held, its main thread waits in the handler and ignores SIGTERM, so neither a rank's exit
nor Slurm makes it stop the other ranks; it never continues from there. When both are gone, another thread takes the
steps that they would have taken: torchrun's own shutdown would take 30 s if a rank ignores SIGTERM.

It is not held by SIGSTOP: a suspended process does not get what the kernel sends, and node 0's store would not respond
while ranks save together. Do not assume that a signal reaches Python code at once: the main thread may wait in C++ for
other nodes. What the other thread runs is imported before: the main thread may be held in the middle of an import.

A rank is a child of torchrun, which reaps ten times a second, and would then end the other ranks. So this program wraps
Popen.poll, which torchrun calls for its ranks, in its main thread (SubprocessContext in
torch/distributed/elastic/multiprocessing/api.py): it reports how a rank ended before it is reaped, and holds itself if
the rank failed. A thread for each rank reports that at once, even while the main thread is held. And it wraps
Popen.__init__, to give each rank its own streams.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any, NoReturn

from launcher.node.processes import proc, starter, workers
from launcher.node.processes.starter import Starter
from launcher.node.programs.entry import KEEPERS_FD, ORDER_FD


def main(stop_timeout_s: float) -> None:
    """Import torchrun, and run it once the order comes; stop_timeout_s: how long the ranks may save."""
    folder = os.path.dirname(os.environ[proc.FILES])
    own = Starter([os.environ[proc.MARK]], folder, stop_timeout_s, KEEPERS_FD)
    signal.signal(proc.HOLD, _hold)
    for number in proc.NOTICES:  # a handler, unlike SIG_IGN, is not inherited by the ranks
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_keepers, args=(own,), daemon=True).start()
    _follow_ranks(own)
    from torch.distributed import run

    workers.take_passed(ORDER_FD)  # the sockets of the run's claim, which lasts as long as this process
    order = starter.read_order(ORDER_FD)
    if order is None:
        return
    os.environ.clear()
    starter.add_to_environment(order["env"])
    os.chdir(starter.as_path(order["cwd"]))
    os.close(ORDER_FD)
    run.main(list(map(starter.as_path, order["argv"])))


def _hold(*_: object) -> NoReturn:
    """Do nothing more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def _end_with_keepers(own: Starter) -> NoReturn:
    os.read(own.keepers_fd, 1)
    os.kill(os.getpid(), proc.HOLD)  # as the kernel did at the supervisor's death, if that could call prctl
    own.end_run()


def _follow_ranks(own: Starter) -> None:
    """Give each rank that torchrun starts its streams; report its start, and its end before it is reaped."""
    start, reap = subprocess.Popen.__init__, subprocess.Popen.poll
    ranks = set()

    def begin(process: subprocess.Popen[Any], *args: Any, **options: Any) -> None:
        env = options.get("env") or {}
        if "LOCAL_RANK" not in env or "TORCHELASTIC_RUN_ID" not in env:
            start(process, *args, **options)
            return
        env["TORCHELASTIC_RESTART_COUNT"] = env.get("LAUNCH_ATTEMPT", "0")  # torchrun knows of no other attempt
        out, err = own.open_streams(int(env["LOCAL_RANK"])).values()
        start(process, *args, **dict(options, stdout=out, stderr=err, start_new_session=True))
        for fd in (out, err):
            os.close(fd)
        ranks.add(process.pid)
        own.add_rank(int(env["LOCAL_RANK"]), process.pid)
        threading.Thread(target=own.report_end, args=(os.P_PID, process.pid), daemon=True).start()

    def poll(process: subprocess.Popen[Any]) -> int | None:
        if process.returncode is None and process.pid in ranks:
            ended = own.report_end(os.P_PID, process.pid, os.WNOHANG)
            if ended is not None and ended[1]:
                _hold()
        return reap(process)

    subprocess.Popen.__init__ = begin  # type: ignore[method-assign, assignment]
    subprocess.Popen.poll = poll  # type: ignore[method-assign, assignment]
