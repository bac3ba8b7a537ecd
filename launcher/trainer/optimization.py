"""One training step: the optimizer, its learning rate, mixed precision, and gradients of several passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch
from launcher.trainer.options import ConfigError
from launcher.trainer.parallel import AMP_TYPES, Replica


@dataclass(frozen=True)
class Learner:
    """A model with its optimizer, and the training step."""

    replica: Replica
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    config: TrainConfig
    device: torch.device

    def take_step(self, passes: Sequence[Batch], lr: float) -> Tensor:
        """Update the weights with the mean gradient of all passes; return the mean loss without waiting for the GPU."""
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(passes, start=1):
            with self.replica.gradient_sync(wanted=number == len(passes)):
                loss = self.compute_loss(self.replica.module, batch) / len(passes)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if self.config.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.replica.model.parameters(), self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return total

    def compute_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of one batch, in the configured precision."""
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        with choose_precision(self.config.amp, self.device):
            loss: Tensor = module(inputs, targets)
        return loss


def build_learner(replica: Replica, config: TrainConfig, device: torch.device) -> Learner:
    """Build the optimizer for this rank's parameters; on a GPU its update is one fused kernel."""
    if config.amp == "fp16" and device.type != "cuda":
        raise ConfigError("amp fp16 needs a GPU; fix: use bf16, which CPUs support too")
    optimizer = torch.optim.AdamW(
        replica.model.parameters(),
        config.lr,
        weight_decay=config.weight_decay,
        fused=True if device.type == "cuda" else None,
    )
    # fp16's small exponent loses small gradients: the loss is scaled up, and steps that overflow are skipped.
    scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "fp16")
    return Learner(replica, optimizer, scaler, config, device)


def choose_precision(amp: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context that computes matrix products in a shorter type; the parameters keep theirs."""
    return torch.autocast(device.type, AMP_TYPES[amp]) if amp != "off" else nullcontext()


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Return the learning rate of a step from 1 to `steps`: a linear rise, then a cosine decay.

    It depends on nothing else, so a checkpoint needs only the step.
    """
    warmup = min(config.warmup_steps, steps)
    if step <= warmup:
        return config.lr * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    low = config.lr * config.final_lr_fraction
    return low + (config.lr - low) * (1 + math.cos(math.pi * done)) / 2
