"""The steps that end a run on a node, the same for supervisor, guardian and shim.

First the starter of the ranks (torchrun or the shim) is held, then the ranks get SIGTERM and time to save, then all
other processes of the run get SIGTERM. Finally all but the starter are suspended (SIGSTOP) and killed until none is
left, or until `CENSUS_S` is over, or `GPU_CENSUS_S` for those that had a GPU open; then the run's directory is removed,
and the starter is killed. One that has started no rank is killed first.

The starter is held before any rank is asked to exit, it is never suspended, and it is the last to be killed. If it
weren't held, torchrun would signal each rank's whole process group, including data-loader workers, and a trainer whose
workers die can't save ("DataLoader worker exited unexpectedly"). It is held by a signal that it catches, never by
SIGSTOP: if all processes that could continue the steps are killed, the starter must still end its ranks and remove the
directory, and a suspended process can do nothing. A signal goes only to exactly the process that was seen, identified
by its id and start time.

If the process that takes the steps is killed, others may be left suspended; the next one begins with the first step,
and continues or kills them. Do not assume that the processes found in one step are those of the next: a run may start
others at any time, so each step looks again.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Callable, Generator

from launcher.node.processes import proc
from launcher.node.processes.proc import Process
from launcher.node.processes.run_processes import RunProcesses

BEAT_S = 1.0  # how often to send heartbeats: the steps may take longer than the launcher tolerates silence
REST_S = 1.0  # the least time between SIGTERM and SIGKILL for processes that are neither rank nor starter
CENSUS_S = 5.0  # a process in state D can't be killed; it is reported, not waited for
# The driver frees a GPU's memory while the process exits, which takes longer the more there is; NVIDIA's ft_launcher
# waits as long for it.
GPU_CENSUS_S = 50.0
_GPU_PAUSE_S = 0.2

_QUICK_LOOKS = 50  # each takes 0.1 ms, so one of them catches a process that forks and exits every millisecond
_PAUSES_S = (0.005, 0.01, 0.02, 0.04)


def stop_run(
    owned: RunProcesses, timeout_s: float, remove_folder: Callable[[], object], wait_s: float = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[float, None, list[Process]]:  # fmt: skip
    """End the run step by step; return the processes that could not be ended.

    It never waits itself: it yields the number of seconds after which to resume it. timeout_s: how long the ranks may
    take to save after SIGTERM, 0 to kill at once; remove_folder: called once, while nothing lives but the starter, or
    at the end if nothing is left; wait_s: how long to wait first for another supervisor, which has lost its launcher
    and is already ending the run; clock: measures both, in seconds.
    """
    if wait_s > 0:
        yield from _wait(clock() + wait_s, lambda: not owned.living(), clock)
    living = owned.living()
    if owned.starter is not None:
        proc.send_signal(owned.starter, proc.HOLD)
    if timeout_s > 0 and _without_starter(owned, living):  # a starter alone has nothing to save
        end = clock() + timeout_s
        for rank in owned.ranks.values():
            proc.send_signal(rank, signal.SIGTERM)
            proc.send_signal(rank, signal.SIGCONT)  # a suspended process would not react
        yield from _wait(end, lambda: not any(map(proc.is_alive, owned.ranks.values())), clock)
        # These include a trainer that a shell script started; it may be saving.
        rest = _Rest(owned)
        yield from _wait(max(end, clock() + REST_S), rest.is_gone, clock)
        living = owned.living()
    return (yield from _kill(owned, living, time.monotonic() + CENSUS_S, remove_folder))


class _Rest:
    """All processes of the run but the starter; each gets SIGTERM once, including those that start meanwhile.

    A process that has executed another program counts as new: a SIGTERM between its fork and its exec has no effect.
    """

    def __init__(self, owned: RunProcesses) -> None:
        self._owned = owned
        self._asked: set[tuple[int, int, str]] = set()

    def is_gone(self) -> bool:
        """Send SIGTERM to those that haven't got it yet; tell whether none is left."""
        living = _without_starter(self._owned, self._owned.living())
        for process in living:
            program = process.pid, process.started, process.name
            if program not in self._asked:
                self._asked.add(program)
                proc.send_signal(process, signal.SIGTERM)
                proc.send_signal(process, signal.SIGCONT)
        return not living


def _kill(
    owned: RunProcesses, living: list[Process], deadline: float, remove_folder: Callable[[], object]
) -> Generator[float, None, list[Process]]:
    """Kill everything that lives until nothing does, or until the deadline (monotonic seconds); return what is left.

    All are suspended before any is killed, so that none starts another meanwhile. A process that forks faster than
    /proc can be read becomes this process's child when its parent exits, and the kernel tells whether there is one.
    So a run of which only the starter lives, as when all ranks have ended, needs no further look at all of /proc.
    """
    turn, is_removed = 0, False
    gpu_deadline = time.monotonic() + GPU_CENSUS_S
    gpu_users = {_identity(process) for process in living if proc.has_gpus() and proc.holds_gpu(process)}
    while (living or owned.has_children()) and time.monotonic() < deadline:
        if living and not _without_starter(owned, living):
            if owned.has_started and not is_removed:  # otherwise it may be about to start them, and needs the directory
                remove_folder()
                is_removed = True
            living = yield from _kill_starter(living[0])
            continue
        living = yield from _stop(owned, living, deadline)
        is_late = time.monotonic() > deadline - REST_S  # for what can't be killed, the starter isn't kept
        for process in [*_without_starter(owned, living), *(living if is_late else ())]:
            proc.send_signal(process, signal.SIGKILL)
        if not living:
            for child in (child for _ in range(_QUICK_LOOKS) for child in owned.living_children()):
                proc.send_signal(child, signal.SIGKILL)
        yield _PAUSES_S[min(turn, 1)]
        turn += 1
        living = owned.living()
    while not gpu_users.isdisjoint(map(_identity, living)) and time.monotonic() < gpu_deadline:
        yield _GPU_PAUSE_S
        living = owned.living()
    if living and not _without_starter(owned, living):  # a look at all processes took seconds
        living = yield from _kill_starter(living[0])
    known = {process.pid for process in living}
    left = living + [child for child in owned.living_children() if child.pid not in known]
    if not left and not is_removed:
        remove_folder()
    return left


def _kill_starter(starter: Process) -> Generator[float, None, list[Process]]:
    """Kill it; return it if it lives on."""
    proc.send_signal(starter, signal.SIGKILL)
    yield from _wait(time.monotonic() + REST_S, lambda: _is_reaped(starter), time.monotonic)
    return [starter] if proc.is_alive(starter) else []


def _stop(owned: RunProcesses, living: list[Process], deadline: float) -> Generator[float, None, list[Process]]:
    """Suspend all but the starter until no new process appears; return what lives then."""
    stopped: set[tuple[int, int]] = set()
    while time.monotonic() < deadline:
        fresh = [process for process in _without_starter(owned, living) if _identity(process) not in stopped]
        if not fresh:
            break
        for process in fresh:
            proc.send_signal(process, signal.SIGSTOP)
        stopped.update(map(_identity, fresh))
        yield 0
        living = owned.living()
    return living


def _is_reaped(process: Process) -> bool:
    now = proc.read_process(process.pid)
    return now is None or now.started != process.started


def _identity(process: Process) -> tuple[int, int]:
    return process.pid, process.started


def _without_starter(owned: RunProcesses, living: list[Process]) -> list[Process]:
    starter = owned.starter
    return [process for process in living if starter is None or process.pid != starter.pid]


def take_steps(steps: Generator[float, None, list[Process]], beat: Callable[[], object]) -> list[Process]:
    """Take the steps without an event loop; reap children, call `beat` about every second, and return what is left."""
    beat_at = time.monotonic()
    while True:
        try:
            pause = next(steps)
        except StopIteration as end:
            left: list[Process] = end.value
            return left
        time.sleep(pause)
        _reap()
        if time.monotonic() - beat_at >= BEAT_S:
            beat_at = time.monotonic()
            beat()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(deadline: float, is_done: Callable[[], bool], clock: Callable[[], float]) -> Generator[float, None, None]:
    turn = 0
    while not is_done():
        left = deadline - clock()
        if left <= 0:
            return
        yield min(left, _PAUSES_S[min(turn, len(_PAUSES_S) - 1)])
        turn += 1
