"""Run by test_trainer_parallel.py on 4 ranks: what FSDP keeps in memory, and in which types it computes.

Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import outline_model
from launcher.trainer.optimization import Learner, build_learner
from launcher.trainer.parallel import parallelize
from launcher.trainer.rank_table import plan_ranks

SMALL: dict[str, Any] = {"layers": 2, "heads": 4, "dim": 32, "context": 16, "global_batch": 8}
DEEP: dict[str, Any] = {**SMALL, "layers": 12, "dim": 256, "activation_checkpointing": True}
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
WATCHED = ("blocks.0", "blocks.1", "blocks.0.attention", "blocks.0.mlp", "blocks.0.mlp_norm", "norm", "head")


def build(config: TrainConfig, world: World) -> Learner:
    replica = parallelize(outline_model(config), plan_ranks(config, world), config, world)
    return build_learner(replica, config, world.device)


def deal_batch(learner: Learner, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's share of a batch of random bytes."""
    config, table = learner.config, learner.replica.table
    shape = (config.global_batch, config.context)
    tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(step))
    share = tokens.split(table.batch_size)[table.data_rank]
    return share, share.roll(-1, 1)


def learn(config: TrainConfig, world: World) -> list[float]:
    """Return the losses of four steps."""
    learner = build(config, world)
    losses = [learner.take_step([deal_batch(learner, step)], lr=1e-2)[0] for step in range(4)]
    return [float(distributed.all_reduce_mean(loss)) for loss in losses]


def read_memory(name: str) -> int:
    """Return the bytes of this process that are in memory now (VmRSS), or were at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def measure_peaks(world: World) -> dict[str, int]:
    """Return by how much memory grew at most while a deep model was built, and until after a step, in bytes."""
    learn(TrainConfig(parallel="fsdp", **SMALL), world)  # what torch loads at its first use doesn't count
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in memory: proc(5)
    before = read_memory("VmRSS")
    learner = build(TrainConfig(parallel="fsdp", **DEEP), world)
    built = read_memory("VmHWM") - before
    learner.take_step([deal_batch(learner, 1)], lr=1e-3)
    stepped = read_memory("VmHWM") - before
    model = learner.replica.model
    whole, block = (4 * sum(weights.numel() for weights in part.parameters()) for part in (model, model.blocks[0]))
    return {"whole": whole, "block": block, "built": built, "stepped": stepped}


def find_types(config: TrainConfig, world: World) -> dict[str, str]:
    """Return the types of what the blocks add up, of the products in them, and of the gradients."""
    learner, types = build(config, world), {}

    def watch(name: str) -> Callable[[Any, Any, torch.Tensor], None]:
        return lambda module, inputs, output: types.update({name: str(output.dtype)})

    for name in WATCHED:
        learner.replica.model.get_submodule(name).register_forward_hook(watch(name))
    learner.compute_loss(learner.replica.module, deal_batch(learner, 1)).backward()
    types["gradients"] = " ".join({str(weights.grad.dtype) for weights in learner.replica.model.parameters()})
    return types


def has_gradients(config: TrainConfig, world: World) -> bool:
    """Return whether the shards have gradients after the first of two passes."""
    learner = build(config, world)
    with learner.replica.gradient_sync(last=False):
        learner.compute_loss(learner.replica.module, deal_batch(learner, 1)).backward()
    return all(weights.grad is not None for weights in learner.replica.model.parameters())


# So that freed tensors leave the process: by itself glibc keeps some for later.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 << 10)
world = distributed.init("gloo")
seen = {
    "memory": measure_peaks(world),
    "losses": {
        "ddp": learn(TrainConfig(**SMALL), world),
        "hsdp+tp": learn(TrainConfig(hsdp=2, tensor_parallel=2, **SMALL), world),
        "ddp bf16": learn(TrainConfig(amp="bf16", **SMALL), world),
        "fsdp bf16": learn(TrainConfig(parallel="fsdp", amp="bf16", **SMALL), world),
    },
    "types": [find_types(TrainConfig(parallel=kind, amp="bf16", **SMALL), world) for kind in ("ddp", "fsdp")],
    "has_gradients": {
        way: has_gradients(TrainConfig(parallel="fsdp", sync_every_pass=way, **SMALL), world) for way in ("auto", "off")
    },
}
if world.is_main:
    print(json.dumps(seen))
distributed.barrier()
distributed.leave(0)
