"""Run under the tests of the collectives: ranks that get wrong results, and then one that does not come.

Every collective of rank 1 does its work, and then one element is another one.
At the end rank 1 does not come to the last step, and rank 0 must end by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import all_reduce, barrier

from launcher import distributed
from launcher.collectives import checks
from launcher.collectives.watch import Watch


def corrupt(function: Callable[..., Any], world: distributed.World, place: int) -> Callable[..., Any]:
    """Return the collective with a wrong element in its argument number `place`."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        work = function(*args, **kwargs)
        target = args[place][-1] if isinstance(args[place], list) else args[place]
        if world.rank == 1 and isinstance(target, Tensor) and target.numel() >= checks.ELEMENTS:
            target.flatten()[7] += 1
        return work

    return wrapped


def check_corrupted(world: distributed.World) -> None:
    dist.all_reduce = corrupt(dist.all_reduce, world, 0)
    dist.broadcast = corrupt(dist.broadcast, world, 0)
    dist.all_gather = corrupt(dist.all_gather, world, 0)
    checks.reduce_scatter = corrupt(checks.reduce_scatter, world, 0)
    dist.all_to_all_single = corrupt(dist.all_to_all_single, world, 0)
    checks.shift = corrupt(checks.shift, world, 1)
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
    watch._timeout_s = 1
    if world.rank == 1:
        signal.pause()
    with watch.step("all_reduce fp32"):
        all_reduce(torch.zeros(1))


world = distributed.init("gloo", timeout_s=120)
check_corrupted(world)
stall(world)
