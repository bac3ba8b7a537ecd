"""A time limit for each step: whatever a rank waits for, it exits by itself and says what did not finish."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from torch.distributed.distributed_c10d import _get_default_store as default_store  # torch has no public name for it

from launcher import distributed
from launcher.distributed import World

ASK_S = 2.0  # to ask which ranks are missing; the process that keeps the store may be the one that hangs


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


@dataclass
class Watch:
    """Give each step a time limit; all ranks of a world must take the same steps in the same order.

    `names` are the hosts', if `launch` passed them.
    """

    world: World
    timeout_s: float
    names: Sequence[str] = ()
    number: int = 0  # of the step that this rank is in

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Limit the time of one step; on a timeout, name the ranks that have not reached it."""
        with time_limit(f"rank {self.world.rank}: {name}", self.timeout_s, self._find_late):
            self.number = default_store().add(f"step/{self.world.rank}", 1)
            yield

    def _find_late(self) -> str:
        steps = [default_store().add(f"step/{rank}", 0) for rank in range(self.world.world_size)]
        late = [self._describe(rank) for rank, number in enumerate(steps) if number < self.number]
        return f"; missing: rank {', '.join(late)}" if late else ""

    def _describe(self, rank: int) -> str:
        each = self.world.local_world_size
        has_names = len(self.names) * each == self.world.world_size
        return f"{rank} ({self.names[rank // each]})" if has_names else str(rank)


def _give_up(text: str, find_late: Callable[[], str]) -> None:
    found = [""]
    asking = threading.Thread(target=lambda: found.append(find_late()), daemon=True)
    with suppress(RuntimeError):  # if no thread can be started, this process must still end
        asking.start()
        asking.join(ASK_S)
    print(text + found[-1], file=sys.stderr, flush=True)
    distributed.leave(1)
