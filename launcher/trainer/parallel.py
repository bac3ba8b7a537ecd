"""How the ranks split the work: data parallel, sharded, tensor parallel, or sharded and tensor parallel.

The ranks form a table: each row gets its own share of the data (`data_rank`), and the ranks of a row share
each matrix product. DDP and FSDP have rows of one rank; tensor parallelism alone has a single row.
FSDP and DTensor take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from launcher import distributed
from launcher.distributed import World, WorldError
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import Dropout
from launcher.trainer.options import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

TENSOR_KINDS = ("tp", "fsdp+tp")
SIZES_SHOWN, LEAST_TRIED = 5, 8
SHARDED_KINDS = ("fsdp", *TENSOR_KINDS)


@dataclass(frozen=True)
class Layout:
    """The position of this rank in the table of ranks, and how much data goes through each row."""

    kind: str
    data_size: int
    data_rank: int
    tensor_size: int
    batch_size: int
    accumulate: int

    @property
    def sharded(self) -> bool:
        """Return whether no rank has the whole model."""
        return self.kind in SHARDED_KINDS

    @property
    def global_batch(self) -> int:
        """Return the number of samples per step of all ranks together."""
        return self.batch_size * self.data_size * self.accumulate

    def describe_batch(self) -> str:
        """Return the factors of the global batch in words."""
        rows = "ranks" if self.tensor_size == 1 else f"groups of {self.tensor_size} ranks"
        factors = [f"{self.data_size} {rows}"] if self.data_size > 1 else []
        factors.append(f"batch size {self.batch_size}")
        return " x ".join(factors + ([f"{self.accumulate} passes"] if self.accumulate > 1 else []))


def plan_layout(config: TrainConfig, world: World) -> Layout:
    """Return the table of ranks for the config, or raise `ConfigError` with the numbers of ranks that would work."""
    try:
        return deal_ranks(config, world)
    except ConfigError as error:
        numbers = list_world_sizes(config, world)
        remedy = f"{', or' if '; fix: ' in str(error) else '; fix:'} start {numbers}" if numbers else ""
        raise ConfigError(f"{error}{remedy}") from None


def list_world_sizes(config: TrainConfig, world: World) -> str:
    """Return the numbers of ranks near this one that would work: `2, 4 or 8 ranks`; "" if there are none."""
    sizes = []
    for size in range(1, max(2 * world.world_size, LEAST_TRIED) + 1):
        with suppress(ConfigError):
            deal_ranks(config, replace(world, rank=0, world_size=size))
            sizes.append(size)
    nearest = sorted(sizes, key=lambda size: abs(size - world.world_size))[:SIZES_SHOWN]
    *others, last = map(str, sorted(nearest)) if nearest else ("",)
    words = f"{', '.join(others)} or {last}" if others else last
    return f"{words} rank{'' if words == '1' else 's'}" if words else ""


def deal_ranks(config: TrainConfig, world: World) -> Layout:
    """Return the table of ranks for the config; raise ConfigError if the number of ranks doesn't fit."""
    kind = choose_kind(config, world.world_size)
    tensor_size = choose_tensor_size(config, kind, world.world_size)
    data_size = world.world_size // tensor_size
    return Layout(
        kind=kind,
        data_size=data_size,
        data_rank=world.rank // tensor_size,
        tensor_size=tensor_size,
        batch_size=choose_batch_size(config, data_size),
        accumulate=config.accumulate,
    )


def choose_kind(config: TrainConfig, world_size: int) -> str:
    """Resolve `auto`; a single process gets no parallelism unless fsdp or tp is requested."""
    if config.parallel == "ddp" and world_size == 1:
        return "none"
    if config.parallel != "auto":
        return config.parallel
    if config.tensor_parallel > 1:
        return "tp" if config.tensor_parallel == world_size else "fsdp+tp"
    return "ddp" if world_size > 1 else "none"


def choose_tensor_size(config: TrainConfig, kind: str, world_size: int) -> int:
    """Return how many ranks share each matrix product; the world size, heads and context must be multiples of it."""
    asked = config.tensor_parallel
    if kind not in TENSOR_KINDS:
        if asked > 1:
            raise ConfigError(
                f"parallel {kind} has no tensor parallelism, got tensor_parallel {asked}; fix: use fsdp+tp"
            )
        return 1
    if kind == "fsdp+tp" and not asked:
        raise ConfigError("parallel fsdp+tp needs --tensor-parallel N, the ranks that share each matrix product")
    size = asked or world_size
    if kind == "tp" and size != world_size:
        raise ConfigError(f"parallel tp uses all {world_size} ranks, got tensor_parallel {size}; fix: use fsdp+tp")
    if world_size % size:
        raise ConfigError(f"the number of ranks must be a multiple of tensor_parallel, got {world_size} and {size}")
    if config.kind == "regression":
        raise ConfigError(
            f"parallel {kind} splits the heads of a text model, but the regression has none; fix: use fsdp"
        )
    for name in ("heads", "context"):
        if getattr(config, name) % size:
            raise ConfigError(f"{name} must be a multiple of tensor_parallel, got {getattr(config, name)} and {size}")
    return size


def choose_batch_size(config: TrainConfig, data_size: int) -> int:
    """Return the number of samples in one pass through one row of the table."""
    if not config.global_batch:
        return config.batch_size
    try:
        share = distributed.batch_per_rank(config.global_batch, data_size)
    except WorldError as error:  # the same on every rank, so one of them reports it
        raise ConfigError(str(error)) from None
    if share % config.accumulate:
        raise ConfigError(f"{share} samples per rank can't be split into {config.accumulate} equal passes (accumulate)")
    return share // config.accumulate


@dataclass(frozen=True)
class Replica:
    """This rank's part of the model: `module` communicates with the other ranks, `model` has the plain names."""

    model: nn.Module
    module: nn.Module
    layout: Layout

    def gradient_sync(self, *, wanted: bool) -> AbstractContextManager[None]:
        """Return a context in which `backward` averages the gradients over the ranks, or only accumulates them here."""
        if isinstance(self.module, DistributedDataParallel) and not wanted:
            skipping: AbstractContextManager[None] = self.module.no_sync()
            return skipping
        if self.layout.kind in ("fsdp", "fsdp+tp"):
            self.module.set_requires_gradient_sync(wanted)  # type: ignore[operator]  # FSDP's own method
        return nullcontext()


def parallelize(model: nn.Module, layout: Layout, config: TrainConfig, world: World) -> Replica:
    """Turn a model that is the same on every rank into this rank's part of it."""
    if not layout.sharded:
        if config.compile:
            model.compile()  # inside DDP, which can then still send gradients while it computes others
        module = DistributedDataParallel(model) if layout.kind == "ddp" else model
        return Replica(model, module, layout)
    mesh = make_mesh(layout, world)
    if layout.kind in TENSOR_KINDS:
        share_matrices(model, mesh["tensor"])
    if config.compile:
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile()  # block by block: FSDP fetches the parameters between blocks
    if layout.kind in ("fsdp", "fsdp+tp"):
        share_parameters(model, mesh["data"], config.amp)
    return Replica(model, model, layout)


def make_mesh(layout: Layout, world: World) -> DeviceMesh:
    """Build torch's mesh for the table of ranks; the ranks of a row are neighbours, so they usually share a node."""
    from torch.distributed.device_mesh import init_device_mesh

    # Torch 2.13 warns on each rank about each sum over both dimensions, which the gradient norm needs.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    names = ("data", "tensor")
    mesh = init_device_mesh(world.device.type, (layout.data_size, layout.tensor_size), mesh_dim_names=names)
    for name in names:  # a mesh gives its groups torch's own time limit (torch 2.13, which has no public way)
        _set_pg_timeout(timedelta(seconds=world.timeout_s), mesh.get_group(name))
    return mesh


def share_parameters(model: nn.Module, mesh: DeviceMesh, amp: str) -> None:
    """Shard the parameters with FSDP: a block's parameters are gathered while it is used, then freed."""
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        raise ConfigError(f"parallel fsdp needs torch 2.6 or newer, this is {torch.__version__}") from None

    # Parameters are sent in the type of the computation; gradients are summed in fp32.
    policy = MixedPrecisionPolicy(param_dtype=AMP_TYPES.get(amp), reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def share_matrices(model: nn.Module, mesh: DeviceMesh) -> None:
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
    for block in model.blocks:  # type: ignore[union-attr]
        parallelize_module(block, mesh, inner)
