"""The training loop: step, log, save after each epoch and on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import save_checkpoint
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch, build_loader

EXIT_SIGTERM = 128 + signal.SIGTERM
LINGER_S = 5.0


@dataclass
class Training:
    """What a checkpoint holds: the model, the optimizer, and how far they have come."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    epoch: int = 0
    step: int = 0

    @property
    def checkpoint(self) -> Path:
        """Where `save` writes."""
        return Path(self.config.save_dir) / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint; for rank 0, whose parameters are those of every rank."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "config": asdict(self.config),
            "epoch": self.epoch,
            "step": self.step,
        }
        save_checkpoint(self.checkpoint, state)


def train(model: nn.Module, text: Tensor, config: TrainConfig, world: World) -> None:
    """Train `model` in place; after SIGTERM rank 0 saves, and each rank ends with 143."""
    loader, sampler = build_loader(text, config, world)
    steps = min(len(loader), config.steps_per_epoch or len(loader))
    replica = DistributedDataParallel(model) if world.world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay)
    training = Training(model, optimizer, config)
    journal = Journal(config, world)
    journal.begin(model, text)
    stop = StopSignal(world)
    try:
        for epoch in range(1, config.epochs + 1):
            training.epoch = epoch
            sampler.set_epoch(epoch)
            for step, batch in enumerate(islice(loader, steps), start=training.step + 1):
                loss = take_step(replica, optimizer, batch, config.clip_norm, world.device)
                training.step = step
                if step == 1 or step % config.log_every == 0 or step == epoch * steps:
                    journal.record(training, loss)
                if stop.requested and world.is_main:
                    leave_early(training, world)
            if world.is_main:
                training.save()
    except RuntimeError:
        # A peer that was stopped too has left, and the step we share with it can't end.
        if not stop.requested:
            raise
        leave_early(training, world)
    # Nobody ends well before the checkpoint is there.
    distributed.barrier()
    journal.end(training)


def take_step(
    replica: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, clip_norm: float, device: torch.device
) -> Tensor:
    """Learn from one batch and return its loss; DDP averages the gradients over the ranks in `backward`."""
    tokens, targets = (part.to(device) for part in batch)
    loss: Tensor = replica(tokens, targets)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(replica.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()


class StopSignal:
    """SIGTERM, remembered until the step is done.

    The ranks don't get it at the same moment, and some may not get it at all, so they can't agree on a step.
    Rank 0 saves after the step it is in, without a collective.
    The others go on stepping meanwhile, or rank 0 would wait for them in the middle of its step;
    they leave when it has left, or after `LINGER_S` (NCCL would wait for it for ever).
    """

    def __init__(self, world: World) -> None:
        self.requested = False
        self._world = world
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if not self.requested and not self._world.is_main:
            timer = threading.Timer(LINGER_S, os._exit, args=(EXIT_SIGTERM,))
            timer.daemon = True
            timer.start()
        self.requested = True


def leave_early(training: Training, world: World) -> NoReturn:
    """Save on rank 0, which says so, and end with 143."""
    if world.is_main:
        training.save()
        print(f"SIGTERM: step {training.step} saved in {training.checkpoint}", flush=True)
    distributed.leave(EXIT_SIGTERM)


class Journal:
    """What rank 0 tells of the run, on the screen and in metrics.jsonl; other ranks are silent."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self._config = config
        self._world = world
        self._metrics = Path(config.save_dir) / "metrics.jsonl"
        self._losses: list[float] = []
        self._last_step = 0
        self._last_time = self._start_time = time.perf_counter()

    def begin(self, model: nn.Module, text: Tensor) -> None:
        """Print one line: world, backend, device, data, parameters."""
        if not self._world.is_main:
            return
        self._metrics.write_text("")
        world, parameters = self._world, sum(parameter.numel() for parameter in model.parameters())
        ranks = f"{world.world_size} rank{'s' if world.world_size > 1 else ''}"
        source = self._config.data or "the topics of Python's help()"
        print(
            f"{ranks} ({world.launched_by}, {world.backend}, {world.device}), "
            f"{short(len(text))} bytes of {source}, {short(parameters)} parameters",
            flush=True,
        )

    def record(self, training: Training, loss: Tensor) -> None:
        """Print rank 0's loss and the speed of all ranks together since the last line."""
        if not self._world.is_main:
            return
        self._losses.append(loss.item())
        now = time.perf_counter()
        tokens_per_step = self._config.batch_size * self._config.context * self._world.world_size
        speed = (training.step - self._last_step) * tokens_per_step / (now - self._last_time)
        self._last_step, self._last_time = training.step, now
        where = f"epoch {training.epoch} step {training.step}"
        print(f"{where} loss {self._losses[-1]:.3f} {short(speed)} tokens/s", flush=True)
        line = {
            "epoch": training.epoch,
            "step": training.step,
            "loss": self._losses[-1],
            "tokens_per_s": round(speed, 1),
            "elapsed_s": round(now - self._start_time, 3),
        }
        with self._metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def end(self, training: Training) -> None:
        """Print one line: where the loss ended and began, and where the checkpoint is."""
        if self._world.is_main:
            first, final = self._losses[0], self._losses[-1]
            print(f"final loss {final:.3f} (first {first:.3f}), checkpoint in {training.checkpoint}", flush=True)


def short(number: float) -> str:
    """Write 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
