"""Collectives under the names that the installed torch has for them."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from launcher.distributed import World


def reduce_scatter(output: Tensor, values: Tensor) -> None:
    """Sum `values` over all ranks, and store this rank's part in `output`."""
    # Renamed in torch 2.13, where the old name warns.
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    function(output, values)


def all_gather(output: Tensor, values: Tensor) -> None:
    """Gather the values of all ranks, in rank order, into one flat output."""
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    function(output, values)


def all_to_all(output: Tensor, values: Tensor) -> None:
    """Send part i of `values` to rank i; parts are rows, or equal shares of a flat tensor."""
    dist.all_to_all_single(output, values)


def shift(world: World, output: Tensor, values: Tensor) -> None:
    """Send to the next rank and receive from the previous one; all ranks do so at once, so no order is needed."""
    size = world.world_size
    transfers = [
        dist.P2POp(dist.isend, values, (world.rank + 1) % size),
        dist.P2POp(dist.irecv, output, (world.rank - 1) % size),
    ]
    for transfer in dist.batch_isend_irecv(transfers):
        transfer.wait()
