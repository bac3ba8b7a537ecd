"""SIGTERM: remembered until the step is done, and agreed on by all ranks."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.distributed import World

EXIT_SIGTERM = 128 + signal.SIGTERM


class StopVote:
    """Has any rank got SIGTERM? All ranks get the same answer in the same step.

    The ranks don't get the signal at the same moment, and some may not get it at all, while a sharded model
    can be saved only by all of them together: so they vote in each step, and read the vote in the next one.
    By then it has long arrived, and a GPU is not asked, so it costs no waiting: the votes travel in a gloo group.
    """

    def __init__(self, world: World) -> None:
        self.requested = False
        self.agreed = False
        self._group = dist.new_group(backend="gloo") if world.world_size > 1 else None
        self._vote: tuple[Tensor, dist.Work] | None = None
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True

    def poll(self) -> bool:
        """Read the last vote and hold the next one; call it equally often on every rank."""
        self.finish()
        if self._group is None:
            self.agreed = self.requested
        elif not self.agreed:
            ballot = torch.tensor(int(self.requested))
            work = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._group, async_op=True)
            assert work is not None  # it is asynchronous, and this rank is in the group
            self._vote = ballot, work
        return self.agreed

    def finish(self) -> None:
        """Wait for the vote that is under way, so that no rank leaves it to the others."""
        if self._vote is not None:
            ballot, work = self._vote
            self._vote = None
            work.wait()
            self.agreed = self.agreed or bool(ballot)
