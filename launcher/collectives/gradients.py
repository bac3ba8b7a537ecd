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
SAMPLES = 8  # per rank
# Sums in another order round differently; a gradient that was not averaged is off by far more.
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
    own = slice(world.rank * SAMPLES, (world.rank + 1) * SAMPLES)
    precision = torch.get_float32_matmul_precision()
    # TF32, which an image may turn on with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, rounds by more than the tolerance.
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same model and samples on every rank
            model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS)).to(world.device)
            inputs = torch.randn(world.world_size * SAMPLES, INPUTS).to(world.device)
        expected = find_gradients(model, inputs)
        model.zero_grad()
        got = find_gradients(wrap(model), inputs[own])
    finally:
        torch.set_float32_matmul_precision(precision)
    return Comparison(float((got - expected).abs().max()), float(expected.abs().max()))


def find_gradients(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return all gradients of one backward pass, flat; the loss is a mean over the samples, as DDP expects."""
    model(inputs).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
