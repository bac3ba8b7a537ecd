"""Run under the tests of the collectives: ranks that get wrong results, and then one that does not come.

Every collective of rank 1 does its work, and then one element is another one.
At the end rank 1 does not come to the last step, and rank 0 must end by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import all_reduce, barrier

from launcher import distributed
from launcher.collectives import checks
from launcher.collectives.watch import Watch


def corrupt(function: Callable[..., Any], world: distributed.World) -> Callable[..., Any]:
    """Return the collective with a wrong element in what it receives, its first argument."""

    def wrapped(received: Any, *args: Any, **kwargs: Any) -> Any:
        work = function(received, *args, **kwargs)
        if world.rank == 1 and received.numel() >= checks.ELEMENTS:
            received[7] += 1
        return work

    return wrapped


def check_corrupted(world: distributed.World) -> None:
    names = ["all_reduce", "broadcast", "all_to_all_single"]
    is_new = hasattr(dist, "all_gather_single")
    names += (
        ["all_gather_single", "reduce_scatter_single"]
        if is_new
        else ["all_gather_into_tensor", "reduce_scatter_tensor"]
    )
    for name in names:
        setattr(dist, name, corrupt(getattr(dist, name), world))
    transfer = dist.batch_isend_irecv

    def wrong_transfer(operations: Sequence[dist.P2POp]) -> list[dist.Work]:
        for work in transfer(operations):
            work.wait()
        operations[1].tensor[7] += world.rank
        return []

    dist.batch_isend_irecv = wrong_transfer
    dist.barrier = lambda: None
    checks.run_checks(world, Watch(world, timeout_s=120), dict([*checks.CHECKS.items()][:-1]))
    averaged, expected = checks.check_ddp_step(world, torch.float32, wrap=lambda model: model)  # nobody averages
    print("gradients differ:", checks.describe_mismatch(averaged, expected), flush=True)


def stall(world: distributed.World) -> None:
    watch = Watch(world, timeout_s=120)
    if world.rank == 1:
        print("stalled", flush=True)  # before rank 0 can begin to wait for it
    with watch.step("all_gather"):
        barrier()
    watch.timeout_s = 1
    if world.rank == 1:
        signal.pause()
    with watch.step("all_reduce fp32"):
        all_reduce(torch.zeros(1))


world = distributed.init("gloo", timeout_s=120)
check_corrupted(world)
stall(world)
