"""Handle SIGTERM: remember it until the step is done, and stop all ranks at the same step."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.distributed import World

EXIT_SIGTERM = 128 + signal.SIGTERM


class StopVote:
    """Find out whether any rank has got SIGTERM; all ranks get the same answer in the same step.

    The ranks don't get the signal at the same moment, and some may not get it at all, but a sharded model
    can be saved only by all of them together. So they vote in each step, and read the result in the next one.
    By then it has arrived, and the votes use a gloo group and not the GPU, so voting costs no waiting.
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
        """Read the last vote and start the next one; every rank must call this equally often."""
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
        """Wait for the pending vote, so that no rank exits while others wait for its vote."""
        if self._vote is not None:
            ballot, work = self._vote
            self._vote = None
            work.wait()
            self.agreed = self.agreed or bool(ballot)
