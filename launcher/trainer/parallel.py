"""Which ranks share what, and how a model is split between them: DDP, FSDP2, HSDP, tensor parallelism, or both.

FSDP and DTensor take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from launcher.distributed import World
from launcher.exchange import gather
from launcher.trainer.config import ConfigError, RunError, TrainConfig
from launcher.trainer.model import Transformer, init_weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DISK_PATIENCE = 6  # times the time limit of a collective: one rank's disk may be slow
Result = TypeVar("Result")


@dataclass(frozen=True)
class ParallelDims:
    """How many ranks replicate the model, shard it, and share its matrix products; their product is the world size.

    Ranks that share matrix products (`tp`) are neighbours, and get the same data; then come the shards of a replica.
    """

    kind: str  # single, ddp, fsdp, tp or fsdp+tp
    replicate: int
    shard: int
    tp: int
    rank: int
    batch_size: int  # samples per rank and pass

    @property
    def is_sharded(self) -> bool:
        """Return whether no rank has the whole model."""
        return self.kind in ("fsdp", "tp", "fsdp+tp")

    @property
    def dp_size(self) -> int:
        """Return among how many ranks, or groups of them, the data are divided."""
        return self.replicate * self.shard

    @property
    def dp_rank(self) -> int:
        """Return which share of the data is this rank's."""
        return self.rank // self.tp


def plan_dims(config: TrainConfig, world: World) -> ParallelDims:
    """Return how the ranks are used; raise ConfigError if their number doesn't fit."""
    size, tp, hsdp, kind = world.world_size, config.tensor_parallel, config.hsdp, config.parallel
    if kind == "auto":
        kind = "tp" if tp > 1 and tp == size and not hsdp else "fsdp+tp" if tp > 1 else "fsdp" if hsdp else "ddp"
    if kind == "ddp" and size == 1:
        kind = "single"
    tp = tp or (size if kind == "tp" else 1)
    if tp != {"tp": size, "fsdp+tp": config.tensor_parallel or -1}.get(kind, 1):
        asked = f"tensor_parallel {config.tensor_parallel}"
        raise ConfigError(f"parallel {kind} on {size} ranks doesn't go with {asked}; fix: use fsdp+tp with 2 or more")
    if "fsdp" not in kind and hsdp:
        raise ConfigError(f"parallel {kind} has no shards to replicate, got hsdp {hsdp}; fix: use fsdp")
    if kind not in ("single", "ddp") and config.evaluate_on == "main":
        raise ConfigError(f"evaluate_on main needs the whole model, but parallel {kind} splits it")
    if kind not in ("single", "ddp") and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise ConfigError(f"parallel {kind} needs torch 2.6 or newer, this is {torch.__version__}")
    if kind not in ("single", "ddp") and find_spec("numpy") is None:
        fix = "fix: install numpy on all hosts, or use ddp"
        raise ConfigError(f"parallel {kind} needs numpy, which torch uses to save shards; {fix}")
    if size % (tp * max(1, hsdp)):
        raise ConfigError(f"{size} ranks can't be divided by hsdp {max(1, hsdp)} x tensor_parallel {tp}")
    for name in ("heads", "context"):
        if getattr(config, name) % tp:
            raise ConfigError(f"{name} must be a multiple of tensor_parallel, got {getattr(config, name)} and {tp}")
    replicate = size // tp if kind in ("single", "ddp") else max(1, hsdp)
    batch_size, rest = divmod(config.global_batch, size // tp * config.accumulate)
    if rest:
        among = f"{size // tp} ranks x {config.accumulate} passes"
        raise ConfigError(f"a global batch of {config.global_batch} can't be split among {among}")
    return ParallelDims(kind, replicate, size // tp // replicate, tp, world.rank, batch_size or config.batch_size)


# ---- what all ranks do together ----------------------------------------------------------------------------------


def make_cpu_group(world: World) -> Any:
    """Make a group of all ranks for what may wait for a disk, or must not wait for a GPU."""
    return dist.new_group(timeout=timedelta(seconds=DISK_PATIENCE * world.timeout_s), backend="gloo")


def on_main(run: Callable[[], Result], group: Any) -> Result:
    """Run a function on rank 0, and return its result, a small one, on every rank.

    ConfigError and RunError are raised on all of them, and RunError for an OSError.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome = [run(), None]
        except (ConfigError, RunError) as error:
            outcome = [None, error]
        except OSError as error:
            outcome = [None, RunError(f"{error.filename or 'rank 0'}: {error.strerror or error}")]
    result, failure = gather(outcome, group)[0]
    if failure is not None:
        raise failure
    return result  # type: ignore[no-any-return]  # rank 0's


# ---- the model -----------------------------------------------------------------------------------------------------


def parallelize(model: Transformer, config: TrainConfig, dims: ParallelDims, world: World) -> nn.Module:
    """Split a model on the meta device, and give it memory and the weights of the seed; return what a pass calls.

    Under DDP that is a wrapper; otherwise it is the model.
    """
    if config.activation_checkpointing:
        for block in model.blocks:  # what FSDP and torch.compile add around its forward stays outside
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if not dims.is_sharded:
        init_weights(model, config.seed, world.device)
        if config.compile:
            model.compile()  # inside DDP, which can then still send gradients while it computes others
        return DistributedDataParallel(model) if dims.kind == "ddp" else model
    mesh = make_mesh(dims, world)
    if "tp" in dims.kind:
        apply_tp(model, mesh["tp"])
    if config.compile:
        for block in model.blocks:
            block.compile()  # block by block: FSDP fetches the parameters between blocks
    if "fsdp" in dims.kind:
        apply_fsdp(model, mesh["replicate", "shard"] if dims.replicate > 1 else mesh["shard"], config)
    init_weights(model, config.seed, world.device)
    return model


def make_mesh(dims: ParallelDims, world: World) -> DeviceMesh:
    """Build torch's mesh, whose groups get the time limit of this run instead of torch's own."""
    from torch.distributed import distributed_c10d
    from torch.distributed.device_mesh import init_device_mesh

    # Torch 2.13 warns on each rank about each sum over several dimensions, which the gradient norm needs.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    names = ("replicate", "shard", "tp") if dims.replicate > 1 else ("shard", "tp")
    mesh = init_device_mesh(world.device.type, tuple(getattr(dims, name) for name in names), mesh_dim_names=names)
    # Torch 2.15 has the public name, and warns of the private one.
    set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
    for name in names:
        set_timeout(timedelta(seconds=world.timeout_s), mesh.get_group(name))
    return mesh


def apply_fsdp(model: Transformer, mesh: DeviceMesh, config: TrainConfig) -> None:
    """Shard the parameters with FSDP2: a block's are gathered while it is used, then freed."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # A block's parameters are sent in the type of its matrix products; gradients are summed in fp32. Autocast casts
    # what is left, as it does under DDP: the embeddings and what the blocks add up stay fp32.
    short = MixedPrecisionPolicy(AMP_TYPES.get(config.amp), torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=short)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))


def apply_tp(model: Transformer, mesh: DeviceMesh) -> None:
    """Split each matrix over the ranks of the mesh, with sequence parallel norms.

    Between the blocks each rank holds a part of the sequence (`Shard(1)`), within them a part of the heads and of the
    hidden dimension: https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    sequence, whole = Shard(1), Replicate()
    gather_sequence = PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,))
    outer: dict[str, Any] = {
        "embed_token": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "embed_position": RowwiseParallel(input_layouts=whole, output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sequence, output_layouts=whole),
    }
    inner: dict[str, Any] = {
        "attention_norm": SequenceParallel(),
        "attention": gather_sequence,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.project": RowwiseParallel(output_layouts=sequence),
        "mlp_norm": SequenceParallel(),
        "mlp": gather_sequence,
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(output_layouts=sequence),
    }
    parallelize_module(model, mesh, outer)
    for block in model.blocks:
        parallelize_module(block, mesh, inner)


def gradient_sync(module: nn.Module, *, is_last: bool) -> AbstractContextManager[object]:
    """Return the context of one of several passes: only the last one averages the gradients over the ranks of DDP.

    FSDP reduces them to its shards in each pass, so that no rank keeps a whole gradient, but between its replicas in
    the last one only.
    """
    if isinstance(module, DistributedDataParallel) and not is_last:
        return module.no_sync()
    if hasattr(module, "set_requires_all_reduce"):
        module.set_requires_all_reduce(is_last)  # type: ignore[operator]  # FSDP's own method
    return nullcontext()


def unshard(tensor: Any) -> Tensor:
    """Return the whole of a DTensor, for which every rank must call this; another tensor is whole."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
