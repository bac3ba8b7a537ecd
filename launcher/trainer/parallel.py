"""Give each rank its part of the model: DDP, FSDP2, tensor parallelism, or the last two combined.

FSDP and DTensor take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import Dropout, Model, materialize
from launcher.trainer.options import ConfigError
from launcher.trainer.precision import AMP_TYPES
from launcher.trainer.rank_table import FSDP_KINDS, TENSOR_KINDS, RankTable

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Replica:
    """This rank's part of the model: `module` communicates with the other ranks, `model` has the plain names."""

    model: nn.Module
    module: nn.Module
    table: RankTable
    sync_every_pass: bool = False

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Return a context for one of several passes, in which `backward` averages the gradients over the ranks.

        Without `sync_every_pass` it does so in the last pass, and adds up this rank's whole gradients before.
        """
        sync = last or self.sync_every_pass
        if isinstance(self.module, DistributedDataParallel) and not sync:
            skipping: AbstractContextManager[None] = self.module.no_sync()
            return skipping
        if self.table.kind in FSDP_KINDS:
            self.module.set_requires_gradient_sync(sync)  # type: ignore[operator]  # FSDP's own methods
            self.module.set_requires_all_reduce(last)  # type: ignore[operator]  # between replicas, once is enough
        return nullcontext()


def parallelize(model: Model, table: RankTable, config: TrainConfig, world: World) -> Replica:
    """Turn an outline of the model into this rank's part of it, with the weights of the seed."""
    sync = {"on": True, "off": False, "auto": table.kind in FSDP_KINDS}[config.sync_every_pass]
    if config.activation_checkpointing:
        checkpoint_activations(model)
    if not table.sharded:
        materialize(model, config.seed, world.device, sharded=False)
        if config.compile:
            model.compile()  # inside DDP, which can then still send gradients while it computes others
        module = DistributedDataParallel(model) if table.kind == "ddp" else model
        return Replica(model, module, table, sync)
    mesh = make_mesh(table, world)
    if table.kind in TENSOR_KINDS:
        share_matrices(model, mesh["tensor"])
    if config.compile:
        for block in model.blocks:
            block.compile()  # block by block: FSDP fetches the parameters between blocks
    if table.kind in FSDP_KINDS:
        share_parameters(model, mesh["replicate", "shard"] if table.replicas > 1 else mesh["shard"], config)
    return Replica(materialize(model, config.seed, world.device, sharded=True), model, table, sync)


def count_shard(replica: Replica) -> tuple[int, int] | None:
    """Return how many parameters this rank has, and the model; None if it has them all."""
    if not replica.table.sharded:
        return None
    parameters: list[Any] = list(replica.model.parameters())
    own = (part.to_local() if hasattr(part, "to_local") else part for part in parameters)
    return sum(part.numel() for part in own), sum(part.numel() for part in parameters)


def make_whole(tensor: Any) -> Tensor:
    """Return the whole of a tensor, which every rank must call for a DTensor; for others it is the tensor itself."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def make_mesh(table: RankTable, world: World) -> DeviceMesh:
    """Build torch's mesh for the table of ranks, with the dimensions replicate (for several replicas), shard, tensor.

    The ranks of a row are neighbours, and so are those of a replica, so they usually share a node.
    """
    from torch.distributed import distributed_c10d
    from torch.distributed.device_mesh import init_device_mesh

    # Torch 2.13 warns on each rank about each sum over several dimensions, which the gradient norm needs.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    sizes = {"shard": table.data_size // table.replicas, "tensor": table.tensor_size}
    if table.replicas > 1:
        sizes = {"replicate": table.replicas, **sizes}
    mesh = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    # Torch 2.15 has the public name, and warns of the private one.
    set_timeout = getattr(torch.distributed, "set_timeout", None) or distributed_c10d._set_pg_timeout
    for name in sizes:  # a mesh gives its groups torch's own time limit
        set_timeout(timedelta(seconds=world.timeout_s), mesh.get_group(name))
    return mesh


def share_parameters(model: Model, mesh: DeviceMesh, config: TrainConfig) -> None:
    """Shard the parameters with FSDP: a block's parameters are gathered while it is used, then freed.

    mesh: one dimension, the shards, or two, replicas by shards.
    """
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        raise ConfigError(f"parallel fsdp needs torch 2.6 or newer, this is {torch.__version__}") from None

    # A block's parameters are sent in the type of its matrix products; gradients are summed in fp32. Autocast casts
    # what is left, as it does under DDP: the embeddings and what the blocks add up stay fp32.
    short = MixedPrecisionPolicy(AMP_TYPES.get(config.amp), torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=short, reshard_after_forward=config.reshard)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))


def share_matrices(model: Model, mesh: DeviceMesh) -> None:
    """Split each matrix over the ranks of a row with torch's tensor parallelism and sequence parallel norms.

    Between the blocks each rank holds a part of the sequence (`Shard(1)`), within them a part of the heads and of the
    hidden dimension: https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html
    """
    try:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )
    except ImportError:
        raise ConfigError(f"parallel tp needs torch 2.5 or newer, this is {torch.__version__}") from None

    sequence, whole = Shard(1), Replicate()
    gather = PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,))
    outer: dict[str, Any] = {
        "embed_byte": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "embed_position": RowwiseParallel(input_layouts=whole, output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sequence, output_layouts=whole),
    }
    inner: dict[str, Any] = {
        "attention_norm": SequenceParallel(),
        "attention": gather,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.project": RowwiseParallel(output_layouts=sequence),
        "mlp_norm": SequenceParallel(),
        "mlp": gather,
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(output_layouts=sequence),
    }
    for module in model.modules():
        if isinstance(module, Dropout):
            module.part, module.parts = mesh.get_local_rank(), mesh.size()
    parallelize_module(model, mesh, outer)
    for block in model.blocks:
        parallelize_module(block, mesh, inner)


def checkpoint_activations(model: Model) -> None:
    """Keep only the input of each block for the backward pass, which then computes the block's activations again.

    The second computation draws the same random numbers as the first one, so dropout hits the same places. Blocks
    keep their names, and what FSDP and torch.compile add around a block's `forward` stays outside of it.
    """
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
