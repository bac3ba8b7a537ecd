"""The training written down a second time, by itself: one process, the whole batch, plain torch, none of our loop.

It shares the model with the trainer, and nothing else: not the order of the data, the schedule, the clipping, the
groups of AdamW or the scaling of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model, init_weights

AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Learned:
    """The loss and the gradient's norm of each step, the validation loss of each epoch, and the last weights."""

    losses: list[float]
    norms: list[float]
    validation_losses: list[float]
    weights: dict[str, torch.Tensor]


def train(path: Path, epochs: int, epoch_steps: int, batch: int, **options: Any) -> Learned:
    """Train on the text of a file."""
    config = TrainConfig(**options)
    text = torch.tensor(list(path.read_bytes()))
    samples = (len(text) - 1) // config.context
    rows = torch.stack([text[n * config.context : (n + 1) * config.context + 1] for n in range(samples)])
    samples -= round(samples * config.validation_fraction)
    model = init_weights(build_model(config), config.seed, torch.device("cpu"))
    named = dict(model.named_parameters())
    decayed = [one for name, one in named.items() if one.ndim == 2 and "embed" not in name]
    others = [one for name, one in named.items() if one.ndim != 2 or "embed" in name]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0}]
    )
    scale, steps = 65536.0 if config.amp == "fp16" else 1.0, epochs * epoch_steps
    learned = Learned([], [], [], named)
    autocast = torch.autocast("cpu", AMP.get(config.amp, torch.bfloat16), enabled=config.amp != "off")
    for step in range(1, steps + 1):
        epoch, number = divmod(step - 1, epoch_steps)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(config.seed + epoch + 1))
        chosen = rows[order[number * batch : (number + 1) * batch]]  # as DistributedSampler deals them
        with autocast:
            loss = model(chosen[:, :-1], chosen[:, 1:])
        (loss * scale).backward()
        for one in named.values():
            one.grad /= scale
        learned.norms.append(float(clip_grad_norm_(named.values(), config.clip_norm or math.inf)))
        warm = min(config.warmup_steps, steps)
        cosine = (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2
        low = config.final_lr_fraction
        rate = config.lr * (step / warm if step <= warm else low + (1 - low) * cosine)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        learned.losses.append(loss.item())
        if number == epoch_steps - 1:
            with autocast, torch.no_grad():
                learned.validation_losses.append(model(rows[samples:, :-1], rows[samples:, 1:]).item())
    return learned
