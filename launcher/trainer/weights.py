"""The first weights of a model: the same for a seed, however the ranks split the model.

A model is built on the meta device, where it has shapes and no memory. Each parameter is then drawn whole on the
CPU, from a generator of its own, and a rank keeps only its shard of it. So no rank ever holds more than its part of
the model and one whole parameter, and the weights don't depend on the number of ranks or on their GPUs.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import Model, outline_model


def build_model(config: TrainConfig, vocabulary: str = "") -> Model:
    """Build the whole model on the CPU, with its first weights; vocabulary: as for `outline_model`."""
    return materialize(outline_model(config, vocabulary), config.seed, torch.device("cpu"), sharded=False)


def materialize(model: Model, seed: int, device: torch.device, *, sharded: bool) -> Model:
    """Give a model on the meta device memory on `device`, and the first weights of the seed; nothing is sent."""
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = draw(model, name, parameter.shape, seed)
            if sharded:
                copy_shard(whole, parameter)
            else:
                parameter.copy_(whole)
    return model


def draw(model: Model, name: str, shape: torch.Size, seed: int) -> Tensor:
    """Return one parameter, whole and on the CPU: biases of 0, norms of 1, normally distributed matrices."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.empty(shape).normal_(std=model.weight_std(name, shape[1]), generator=generator)


def copy_shard(whole: Tensor, parameter: Any) -> None:
    """Copy this rank's shard of a whole tensor into a parameter, a DTensor of the same shape.

    Torch computes where the shard is; it has no public function for that, but its checkpoints use this one, too.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(whole.shape, parameter.device_mesh, parameter.placements)
    ranges = tuple(slice(first, first + size) for first, size in zip(offset, shape))  # noqa: B905  # Python 3.9
    parameter.to_local().copy_(whole[ranges])
