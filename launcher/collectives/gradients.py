"""One step of DistributedDataParallel, compared with the same step of a single process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch._dynamo  # DDP's first model imports it, and on a slow disk that takes longer than a step may
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.distributed import World

INPUTS, HIDDEN, OUTPUTS = 16, 32, 4
SAMPLES = 8  # per rank; a power of two, so that their mean is exact
# DDP multiplies by 1/world_size, which is inexact for 3 ranks; a gradient that was not averaged is off by far more.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Comparison:
    """The largest difference between DDP's and a single process's gradients, and the largest gradient."""

    difference: float
    largest: float

    @property
    def is_equal(self) -> bool:
        """Return whether they are the same except for rounding; all-zero gradients would prove nothing."""
        return self.largest > 0 and self.difference <= TOLERANCE * self.largest

    def __str__(self) -> str:
        words = "equal" if self.is_equal else "differ from"
        largest = f"largest difference {self.difference:.3g}, largest gradient {self.largest:g}"
        return f"gradients {words} a single process's ({largest})"


def compare_gradients(world: World, wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel) -> Comparison:
    """Take one step with each rank's share of the samples and one with all samples in this process; compare them."""
    inputs, targets = make_samples(world.world_size * SAMPLES, world.device)
    own = slice(world.rank * SAMPLES, (world.rank + 1) * SAMPLES)
    precision = torch.get_float32_matmul_precision()
    # TF32, which an image may turn on with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, rounds by more than the tolerance.
    torch.set_float32_matmul_precision("highest")
    try:
        got = find_gradients(wrap(make_model(world.device)), inputs[own], targets[own])
        expected = find_gradients(make_model(world.device), inputs, targets)
    finally:
        torch.set_float32_matmul_precision(precision)
    return Comparison(float((got - expected).abs().max()), float(expected.abs().max()))


def find_gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return all gradients of one backward pass, flat; the loss is a mean over the samples, as DDP expects."""
    loss = (model(inputs) * targets).sum() / len(inputs)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def make_model(device: torch.device) -> nn.Module:
    """Return a small network of small whole numbers, the same on every rank, whose sums are exact in fp32."""
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(_whole_numbers(parameter.numel(), 3).view_as(parameter))
    return model.to(device)


def make_samples(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs and targets for `count` different samples."""
    inputs = _whole_numbers(count * INPUTS, 5).view(count, INPUTS)
    targets = _whole_numbers(count * OUTPUTS, 5).view(count, OUTPUTS)
    return inputs.to(device), targets.to(device)


def _whole_numbers(count: int, values: int) -> Tensor:
    """Return whole numbers around 0 with `values` distinct values, unordered; torch's generators stay untouched."""
    numbers = torch.arange(count)
    return ((numbers * numbers * 31 + numbers * 7) // 11 % values - values // 2).float()
