"""Run by test_trainer_parallel.py on 2 ranks: what FSDP keeps in memory, and in which types it computes.

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
from launcher.trainer.model import build_model
from launcher.trainer.parallel import parallelize, plan_dims
from launcher.trainer.train import group_parameters

SMALL: dict[str, Any] = {"layers": 2, "heads": 4, "dim": 32, "context": 16, "global_batch": 8}
DEEP: dict[str, Any] = {**SMALL, "layers": 12, "dim": 256, "activation_checkpointing": True}
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
WATCHED = ("blocks.0", "blocks.1", "blocks.0.attention", "blocks.0.mlp", "blocks.0.mlp_norm", "norm", "head")


def build(config: TrainConfig, world: World) -> tuple[Any, Any]:
    model = build_model(config)
    return model, parallelize(model, config, plan_dims(config, world), world)


def take_step(model: Any, module: Any, world: World, config: TrainConfig) -> None:
    """Take a step with this rank's share of random bytes."""
    optimizer = torch.optim.AdamW(group_parameters(model, 0.1), 1e-3)
    compute_loss(module, world, config).backward()
    optimizer.step()
    optimizer.zero_grad()


def compute_loss(module: Any, world: World, config: TrainConfig) -> Any:
    shape = (config.global_batch // world.world_size, config.context)
    tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(world.rank))
    with torch.autocast("cpu", torch.bfloat16, enabled=config.amp == "bf16"):
        return module(tokens, tokens.roll(-1, 1))


def read_memory(name: str) -> int:
    """Return the bytes of this process that are in memory now (VmRSS), or were at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def measure_peaks(world: World) -> dict[str, int]:
    """Return by how much memory grew at most while a deep model was built, and until after a step, in bytes."""
    small = TrainConfig(parallel="fsdp", **SMALL)
    take_step(*build(small, world), world, small)  # what torch loads at its first use doesn't count
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in memory: proc(5)
    before = read_memory("VmRSS")
    deep = TrainConfig(parallel="fsdp", **DEEP)
    model, module = build(deep, world)
    built = read_memory("VmHWM") - before
    take_step(model, module, world, deep)
    stepped = read_memory("VmHWM") - before
    whole, block = (4 * sum(weights.numel() for weights in part.parameters()) for part in (model, model.blocks[0]))
    return {"whole": whole, "block": block, "built": built, "stepped": stepped}


def find_types(config: TrainConfig, world: World) -> dict[str, str]:
    """Return the types of what the blocks add up, of the products in them, and of the gradients."""
    types: dict[str, str] = {}
    model, module = build(config, world)

    def watch(name: str) -> Callable[[Any, Any, torch.Tensor], None]:
        return lambda module, inputs, output: types.update({name: str(output.dtype)})

    for name in WATCHED:
        model.get_submodule(name).register_forward_hook(watch(name))
    compute_loss(module, world, config).backward()
    types["gradients"] = " ".join({str(weights.grad.dtype) for weights in model.parameters()})
    return types


# So that freed tensors leave the process: by itself glibc keeps some for later.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 << 10)
world = distributed.init("gloo")
seen = {
    "memory": measure_peaks(world),
    "types": [find_types(TrainConfig(parallel=kind, amp="bf16", **SMALL), world) for kind in ("ddp", "fsdp")],
}
if world.is_main:
    print(json.dumps(seen))
distributed.barrier()
distributed.leave(0)
