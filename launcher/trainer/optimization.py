"""One training step: the optimizer, mixed precision, and gradients of several passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch
from launcher.trainer.options import ConfigError
from launcher.trainer.parallel import Replica
from launcher.trainer.precision import autocast


@dataclass(frozen=True)
class Learner:
    """A model with its optimizer, and the training step."""

    replica: Replica
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    config: TrainConfig
    device: torch.device

    def take_step(self, passes: Sequence[Batch], lr: float, *, measures: bool = False) -> tuple[Tensor, Tensor | None]:
        """Update the weights with the mean gradient of all passes; return the mean loss, and the gradient's norm.

        It doesn't wait for the GPU. The norm is that before clipping, or None if it was neither needed for that nor
        asked for by `measures`; of a sharded model it is a DTensor.
        """
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(passes, start=1):
            with self.replica.gradient_sync(last=number == len(passes)):
                loss = self.compute_loss(self.replica.module, batch) / len(passes)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        norm = None
        if self.config.clip_norm or measures:
            self.scaler.unscale_(self.optimizer)
            # Nothing is longer than infinity, so that only measures.
            most = self.config.clip_norm or math.inf
            norm = nn.utils.clip_grad_norm_(self.replica.model.parameters(), most)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return total, norm

    def compute_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of one batch, in the configured precision."""
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        with autocast(self.config.amp, self.device):
            loss: Tensor = module(inputs, targets)
        return loss


def build_learner(replica: Replica, config: TrainConfig, device: torch.device) -> Learner:
    """Build the optimizer for this rank's parameters; on a GPU its update is one fused kernel."""
    if config.amp == "fp16" and device.type != "cuda":
        raise ConfigError("amp fp16 needs a GPU; fix: use bf16, which CPUs support too")
    optimizer = torch.optim.AdamW(
        group_parameters(replica.model, config.weight_decay),
        config.lr,
        fused=True if device.type == "cuda" else None,
    )
    # fp16's small exponent loses small gradients: the loss is scaled up, and steps that overflow are skipped.
    scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "fp16")
    return Learner(replica, optimizer, scaler, config, device)


def group_parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide the parameters into those with weight decay, the matrices, and those without.

    Norms and biases have one dimension, and must be free to grow; most rows of an embedding get no gradient in a
    step, but would shrink anyway. https://github.com/karpathy/minGPT, `configure_optimizers`, does the same.
    """
    looked_up = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    for parameter in model.parameters():
        decays = parameter.dim() > 1 and id(parameter) not in looked_up
        groups[0 if decays else 1]["params"].append(parameter)
    return groups
