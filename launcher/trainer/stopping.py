"""Handle SIGTERM: remember it until the step is done, stop all ranks at the same step, and exit with 143."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoints.checkpoints import Checkpoints, Position
from launcher.trainer.journal import Journal
from launcher.trainer.rank0_work import hurry

EXIT_SIGTERM = 128 + signal.SIGTERM
# A vote over gloo takes 0.3 to 0.6 ms of each rank on two busy CPU cores: at most 0.7 % of the time every 0.1 s, but
# 5 % of a step of 5 ms (docs/decisions/0010).
VOTE_EVERY_S = 0.1
MOST_STEPS = 50
IDLE_S = 2.0  # of the time between SIGTERM and SIGKILL


class StopVote:
    """Find out whether any rank has got SIGTERM; all ranks get the same answer in the same step.

    The ranks don't get the signal at the same moment, and some may not get it at all, but a sharded model
    can be saved only by all of them together. So they vote, and read the result one step later. By then it has
    arrived, and the votes use a gloo group and not the GPU, so a vote never waits for the GPU.

    In each vote they also agree on the number of steps to the next one: ranks that measure time by themselves would
    vote in different steps, and wait for each other forever.
    """

    def __init__(self, world: World) -> None:
        self.requested = False
        self.agreed = False
        timeout = timedelta(seconds=world.timeout_s)
        self._group = dist.new_group(timeout=timeout, backend="gloo") if world.world_size > 1 else None
        self._vote: tuple[Tensor, dist.Work] | None = None
        self._polls, self._next_vote, self._last_vote = 0, 1, (0, time.perf_counter())
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
        hurry()

    def poll(self) -> bool:
        """Read the pending vote, and start the next one if it is due; every rank must call this equally often."""
        self.finish()
        self._polls += 1
        if self._group is None:
            self.agreed = self.requested
        elif not self.agreed and self._polls >= self._next_vote:
            self._start_vote(self._group)
        return self.agreed

    def decide(self) -> bool:
        """Hold a vote at once, and wait for its result; every rank must call this."""
        self.finish()
        if self._group is None:
            self.agreed = self.requested
        elif not self.agreed:
            self._start_vote(self._group)
            self.finish()
        return self.agreed

    def finish(self) -> None:
        """Wait for the pending vote, so that no rank exits while others wait for its vote."""
        if self._vote is not None:
            ballot, work = self._vote
            self._vote = None
            work.wait()
            requested, negative_steps = ballot.tolist()
            self.agreed = self.agreed or bool(requested)
            self._next_vote = self._polls - negative_steps

    def _start_vote(self, group: dist.ProcessGroup) -> None:
        (polls, then), now = self._last_vote, time.perf_counter()
        self._last_vote = self._polls, now
        steps = count_steps((now - then) / max(1, self._polls - polls))
        # The maximum over the ranks; that of the negative numbers is the fewest steps, those of the slowest rank.
        ballot = torch.tensor([int(self.requested), -steps])
        work = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=group, async_op=True)
        assert work is not None  # it is asynchronous, and this rank is in the group
        self._vote = ballot, work


def count_steps(step_s: float) -> int:
    """Return how many steps of `step_s` seconds may pass between two votes: 1 for long steps, at most `MOST_STEPS`."""
    return max(1, min(MOST_STEPS, int(VOTE_EVERY_S / max(step_s, VOTE_EVERY_S / MOST_STEPS))))


def leave_together(journal: Journal, position: Position, saved: Path) -> NoReturn:
    """End all ranks, which have saved a checkpoint."""
    journal.tell_stop(f"step {position.step} saved in {saved}")
    distributed.barrier()
    leave(journal)


def leave_alone(
    journal: Journal, position: Position, checkpoints: Checkpoints, world: World, error: Exception
) -> NoReturn:
    """Save on rank 0 what it can without the others, which are gone, then end this rank. error: what told so."""
    if world.is_main:
        path, lost = None, "a rank exited with its part of the model"
        if isinstance(error, dist.DistBackendError):
            lost = "NCCL was aborted"  # and leaves wrong gradients behind
            checkpoints.settle()
        elif not is_idle(world.device):
            lost = "the GPU waits for a rank that has exited"
            checkpoints.settle()
        else:
            path = checkpoints.save_alone(position)
        newest = checkpoints.newest()
        said = f"saved in {path}" if path else f"not saved: {lost}; newest checkpoint: {newest or 'none'}"
        journal.tell_stop(f"step {position.step} {said}", can_resume=newest is not None)
    leave(journal)


def is_idle(device: torch.device) -> bool:
    """Return whether a GPU does soon what it has been told to; behind a collective with a dead rank it never does."""
    deadline = time.monotonic() + IDLE_S
    while device.type == "cuda" and not torch.cuda.current_stream(device).query():
        if time.monotonic() > deadline:
            return False
        time.sleep(IDLE_S / 100)
    return True


def leave(journal: Journal) -> NoReturn:
    """Finish the trackers, and exit with 143."""
    journal.close(EXIT_SIGTERM)
    distributed.leave(EXIT_SIGTERM)
