"""A time limit for each step: whatever a rank waits for, it exits by itself and says what did not finish."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from torch.distributed.distributed_c10d import Store, _get_default_store

from launcher import distributed
from launcher.distributed import World

ASK_S = 2.0  # to ask which ranks are missing; the process that keeps the store may be the one that hangs


def default_store() -> Store:
    """Return the store of the process group; torch has no public name for it."""
    return _get_default_store()


@contextmanager
def time_limit(what: str, timeout_s: float, find_late: Callable[[], str] = lambda: "") -> Iterator[None]:
    """End this process with exit code 1 if the block does not finish in time, and print that `what` did not.

    A thread does it, because torch's own timeouts end some waits with an exception, some with SIGABRT, some never.
    `find_late` may name the ranks to blame.
    """
    timer = threading.Timer(timeout_s, _give_up, (f"{what} did not finish in {timeout_s:g} s", find_late))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Watch:
    """Give each step a time limit; all ranks of a world must take the same steps in the same order."""

    def __init__(self, world: World, timeout_s: float, names: Sequence[str] = ()) -> None:
        """Take the hosts' names, if `launch` passed them."""
        self._world = world
        self._timeout_s = timeout_s
        self._names = names
        self._number = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Limit the time of one step; on a timeout, name the ranks that have not reached it."""
        self._number += 1
        default_store().set(f"step/{self._world.rank}", str(self._number))
        with time_limit(f"rank {self._world.rank}: {name}", self._timeout_s, self._find_late):
            yield

    def _find_late(self) -> str:
        late = [self._describe(rank) for rank in range(self._world.world_size) if self._step_of(rank) < self._number]
        return f"; missing: rank {', '.join(late)}" if late else ""

    def _step_of(self, rank: int) -> int:
        store, key = default_store(), f"step/{rank}"
        return int(store.get(key)) if store.check([key]) else 0

    def _describe(self, rank: int) -> str:
        each = self._world.local_world_size
        has_names = len(self._names) * each == self._world.world_size
        return f"{rank} ({self._names[rank // each]})" if has_names else str(rank)


def _give_up(text: str, find_late: Callable[[], str]) -> None:
    found = [""]
    asking = threading.Thread(target=lambda: found.append(find_late()), daemon=True)
    with suppress(RuntimeError):  # if no thread can be started, this process must still end
        asking.start()
        asking.join(ASK_S)
    print(text + found[-1], file=sys.stderr, flush=True)
    distributed.leave(1)
