"""How many steps a run takes, and the learning rate of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from launcher.trainer.checkpoints.checkpoints import Position
from launcher.trainer.config import TrainConfig
from launcher.trainer.rank_table import RankTable


@dataclass(frozen=True)
class Schedule:
    """The steps of a run; an epoch has `epoch_steps`, each of which takes `samples_per_rank` of each rank's samples."""

    epochs: int
    epoch_steps: int
    global_batch: int
    samples_per_rank: int

    def describe(self) -> str:
        """Return `3 epochs of 150 steps`."""
        epochs, steps = (
            f"{number} {noun}{'' if number == 1 else 's'}"
            for number, noun in ((self.epochs, "epoch"), (self.epoch_steps, "step"))
        )
        return f"{epochs} of {steps}"

    def steps_done(self, position: Position) -> int:
        """Return the number of steps done in the position's epoch; another batch size than before rounds it down."""
        return min(self.epoch_steps, position.samples // self.global_batch)

    def count_steps(self, position: Position) -> int:
        """Return the number of steps of the whole run: those done, and those left."""
        return position.step + (self.epochs - position.epoch + 1) * self.epoch_steps - self.steps_done(position)


def plan_steps(config: TrainConfig, table: RankTable, epoch_size: int) -> Schedule:
    """Return the schedule for `epoch_size` samples of each rank in a whole epoch."""
    samples_per_rank = table.batch_size * table.accumulate
    most = epoch_size // samples_per_rank
    return Schedule(config.epochs, min(most, config.steps_per_epoch or most), table.global_batch, samples_per_rank)


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Return the learning rate of a step from 1 to `steps`: a linear rise, then a cosine decay.

    It depends on nothing else, so a checkpoint needs only the step.
    """
    warmup = min(config.warmup_steps, steps)
    if step <= warmup:
        return config.lr * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    low = config.lr * config.final_lr_fraction
    return low + (config.lr - low) * (1 + math.cos(math.pi * done)) / 2
