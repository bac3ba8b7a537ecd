"""The guardian: the first process on a node, which starts the supervisor and stops the run if the supervisor dies.

No process of the run is lost while the guardian lives: it is a subreaper, so the orphans of a dead supervisor become
its children. While the supervisor lives, the guardian only reaps children and forwards signals. Stopping the run is the
supervisor's task, and the two never do it at the same time. If the guardian dies first, the supervisor notices and
stops the run; if both die, torchrun or the shim does.

The guardian writes nothing to stdout, where the supervisor may have died in the middle of a message. It reports on
stderr what became of the run; each message is on a line that begins with the nonce of the connection.
Do not assume that the supervisor's notes are complete: it may have died before it wrote any, or before PREPARE came.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from launcher.node import messages
from launcher.node.processes import proc, stop_steps, workers
from launcher.node.processes.run_processes import RunProcesses, become_subreaper, read_children
from launcher.node.supervisor import Supervisor

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main(nonce: str, wait_s: int) -> NoReturn:
    """Run the node's side of one connection; never returns."""
    # Two pipes: one shows the supervisor that the guardian lives; the other takes what the guardian needs if it dies.
    life_read, life_write = os.pipe()
    handover_read, handover_write = os.pipe()
    # A third closes when both are gone. It is for torchrun or the shim, which then alone can stop the ranks.
    keepers_read, keepers_write = os.pipe()
    guardian = os.getpid()
    # This process was the login shell, and so has the children that its rc files started in the background.
    found = [proc.read_process(child) for child in read_children()]
    strangers = {process.pid: process.started for process in found if process is not None}
    become_subreaper()
    pid = os.fork()
    if pid == 0:
        os.close(life_write)
        os.close(handover_read)
        _run_supervisor(life_read, handover_write, guardian, (keepers_read, keepers_write), strangers)
    os.close(life_read)
    os.close(handover_write)
    os.close(keepers_read)
    workers.silence(1)  # it is the supervisor's alone, so its end of file means that the supervisor died
    # The supervisor decides about signals that ask it to stop; it ignores SIGINT.
    for number in _FORWARDED:
        signal.signal(number, lambda number, frame: _forward(pid, number))
    for number in proc.NOTICES:
        signal.signal(number, lambda number, frame: None)
    status = _wait_for(pid)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        os._exit(0)
    _clean_up(nonce, _read_notes(handover_read), status, strangers)
    os._exit(1)


def _run_supervisor(
    life_fd: int, handover_fd: int, guardian: int, keepers_fds: tuple[int, int], strangers: dict[int, int],
) -> NoReturn:  # fmt: skip
    try:
        become_subreaper()
        Supervisor(life_fd, handover_fd, guardian, keepers_fds, strangers).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
        traceback.print_exc()
        os._exit(1)


def _forward(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _wait_for(supervisor: int) -> int:
    """Reap children, including orphans, until the supervisor exits; return its status."""
    while True:
        # Once it is reaped, its process id may be reused, and another process must not get the signals meant for it.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # it waits
        if ended.si_pid == supervisor:
            for number in _FORWARDED:
                signal.signal(number, signal.SIG_IGN)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == supervisor:
            return status


def _read_notes(fd: int) -> dict[str, Any]:
    """Return the supervisor's notes: `processes`, and `mark`, `folder` and `stop_timeout_s` if PREPARE was served.

    `folder` is None once it is removed, while a claim waits for what becomes of it.
    `sampler` is the process id and the start time of what reads the GPUs.
    """
    os.set_blocking(fd, False)
    with open(fd, "rb") as file:
        text = file.read() or b""
    handover_log: dict[str, Any] = {"processes": []}
    for line in text.splitlines():
        entry = json.loads(line.decode())
        if "pid" in entry:
            handover_log["processes"].append(entry)
        else:
            handover_log.update(entry)
    return handover_log


def _clean_up(nonce: str, handover_log: dict[str, Any], status: int, strangers: dict[int, int]) -> None:
    ending = workers.describe_status(status)
    _say(nonce, messages.encode(messages.FAILED, text="its helper died", supervisor=ending))
    left: list[proc.Process] = []
    if "mark" in handover_log:
        owned = RunProcesses(handover_log["mark"], [os.getpid()])
        owned.strangers = {**strangers, **dict([handover_log["sampler"]] if "sampler" in handover_log else [])}
        for entry in handover_log["processes"]:
            owned.has_started = owned.has_started or entry["rank"] is not None
            process = proc.read_process(entry["pid"])
            if process is None or process.started != entry["started"]:
                continue
            if entry["rank"] is None:
                owned.starter = process
            else:
                owned.add_rank(entry["rank"], process)
        beat, folder = messages.encode(messages.BEAT), handover_log["folder"]
        steps = stop_steps.stop_run(
            owned, handover_log["stop_timeout_s"], lambda: None if folder is None else workers.remove_folder(folder)
        )
        left = stop_steps.take_steps(steps, lambda: _say(nonce, beat))
    found = [[process.pid, process.name, process.state] for process in left]
    _say(nonce, messages.encode(messages.CENSUS, left=found, supervisor=ending))


def _say(nonce: str, message: bytes) -> None:
    with suppress(OSError):  # nobody reads stderr any more
        os.write(2, b"\n" + nonce.encode() + b" " + message)
