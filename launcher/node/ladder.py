"""How a run is ended on a node, the same whoever asks for it.

torchrun is held first: left alone it signals each rank's whole process group, data-loader workers too, and a
trainer whose loader workers die cannot save ("DataLoader worker exited unexpectedly").
"""

from __future__ import annotations

import time

from launcher.node import signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Generator, Protocol

    from launcher.node.processes import Owned, Process

    class Signals(Protocol):
        """What signals processes: the module `processes`, or a test's stand-in."""

        def is_alive(self, process: Process) -> bool: ...
        def send_signal(self, process: Process, number: int) -> None: ...


REST_S = 1.0  # what is neither rank nor torchrun gets at least this long between SIGTERM and SIGKILL
CENSUS_S = 5.0  # a process in state D can't be killed; it is named, not waited for

_PAUSES_S = (0.005, 0.01, 0.02, 0.04)


def descend(
    owned: Owned, processes: Signals, timeout_s: float, wait_s: float = 0
) -> Generator[float, None, list[Process]]:
    """End the run step by step; a generator of seconds to wait, which returns what could not be ended.

    processes: the module (or a stand-in) that sends signals; timeout_s: how long the ranks may take to save after
    SIGTERM, 0 to kill at once; wait_s: how long to look on first, where another supervisor, whose launcher was lost,
    is ending the run already.
    """
    if wait_s > 0:
        yield from _wait(time.monotonic() + wait_s, lambda: not owned.living())
    living = owned.living()
    if living and timeout_s > 0:
        end = time.monotonic() + timeout_s
        if owned.torchrun is not None:
            processes.send_signal(owned.torchrun, signals.SIGSTOP)
        for rank in owned.ranks.values():
            processes.send_signal(rank, signals.SIGTERM)
        yield from _wait(end, lambda: not any(map(processes.is_alive, owned.ranks.values())))
        rest = _without_torchrun(owned)
        for process in rest:
            processes.send_signal(process, signals.SIGTERM)
            processes.send_signal(process, signals.SIGCONT)
        if rest:  # a trainer that a shell script started is found here, and may be saving
            yield from _wait(max(end, time.monotonic() + REST_S), lambda: not _without_torchrun(owned))
        living = owned.living()
    deadline = time.monotonic() + CENSUS_S
    while living and time.monotonic() < deadline:
        for process in living:
            processes.send_signal(process, signals.SIGKILL)
        yield _PAUSES_S[1]
        living = owned.living()
    return living


def _without_torchrun(owned: Owned) -> list[Process]:
    torchrun = owned.torchrun
    return [process for process in owned.living() if torchrun is None or process.pid != torchrun.pid]


def _wait(deadline: float, is_done: Callable[[], bool]) -> Generator[float, None, None]:
    turn = 0
    while not is_done():
        left = deadline - time.monotonic()
        if left <= 0:
            return
        yield min(left, _PAUSES_S[min(turn, len(_PAUSES_S) - 1)])
        turn += 1
