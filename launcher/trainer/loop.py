"""The training loop: step, log, validate, save; after SIGTERM, save and exit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import Checkpoints, Position
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch, Loader, build_loader, load_task
from launcher.trainer.evaluation import Evaluator
from launcher.trainer.journal import Journal, measure_speed
from launcher.trainer.main_rank import make_cpu_group, share_from_main
from launcher.trainer.model import build_model
from launcher.trainer.optimization import Learner, build_learner, learning_rate
from launcher.trainer.options import RunError
from launcher.trainer.ownership import Claim
from launcher.trainer.parallel import Layout, parallelize, plan_layout
from launcher.trainer.randomness import seed_ranks
from launcher.trainer.report import Node, check_nodes, describe_ranks, describe_start, gather_nodes
from launcher.trainer.save_folder import SaveError
from launcher.trainer.stopping import EXIT_SIGTERM, StopVote


def train(config: TrainConfig, world: World, argv: Sequence[str] = ()) -> None:
    """Run the training that the config describes; after SIGTERM save, and end every rank with exit code 143.

    argv: what was typed, for the command that continues the run.
    """
    nodes = gather_nodes(world)
    check_nodes(nodes, config)
    layout = plan_layout(config, world)
    claim = Claim(config, world)
    try:
        train_in_folder(claim.take(), world, nodes, layout, argv)
    finally:
        claim.release()


def train_in_folder(
    config: TrainConfig, world: World, nodes: Sequence[Node], layout: Layout, argv: Sequence[str]
) -> None:
    """Train and save in the directory that this run has claimed."""
    journal = Journal(config, world, argv)
    try:
        share_from_main(journal.open, world)
        group = make_cpu_group()
        task = load_task(config, world, group)
        loader = build_loader(task, config, layout, world)

        model = build_model(config).to(world.device)
        speed = measure_speed(config, world, layout, task, model)
        report = describe_start(world, nodes, layout, task, model)
        seed_ranks(config.seed, 0, layout)  # from here on each data-parallel rank draws its own numbers
        learner = build_learner(parallelize(model, layout, config, world), config, world.device)
        evaluator = Evaluator(loader, config, learner, world)

        checkpoints = Checkpoints(config, world, learner, group)
        position = checkpoints.resume()
        vote = StopVote(world)
        run = Run(
            config=config,
            world=world,
            learner=learner,
            loader=loader,
            evaluator=evaluator,
            checkpoints=checkpoints,
            journal=journal,
            position=position,
            vote=vote,
        )
        report += f"\nsaves   {config.save_dir}{checkpoints.describe_resume(position)}"
        report += describe_ranks(config, world)
        journal.begin(position, run.steps, speed, report)
        run.train()
    except Exception:
        journal.tell_failure()
        journal.close(1)
        raise
    journal.close(0)


@dataclass
class Run:
    """A run in progress: its parts, and its position."""

    config: TrainConfig
    world: World
    learner: Learner
    loader: Loader
    evaluator: Evaluator
    checkpoints: Checkpoints
    journal: Journal
    position: Position
    vote: StopVote
    unchecked: Tensor | None = None

    def __post_init__(self) -> None:
        """Count the steps of the whole run, for the learning rate and the progress line."""
        left = (self.config.epochs - self.position.epoch + 1) * self.epoch_steps
        self.steps = self.position.step + left - self.position.samples // self.global_batch

    def train(self) -> None:
        """Train to the end of the last epoch."""
        try:
            while self.position.epoch <= self.config.epochs:
                self.train_epoch()
            self.vote.finish()
            # No rank may exit with 0 before the model is saved.
            model = self.checkpoints.export()
            distributed.barrier()
        except (RuntimeError, SaveError):
            # A collective failed: another rank has exited after SIGTERM too, or it died.
            if not self.vote.requested:
                raise
            self.leave_alone()
        finally:
            self.checkpoints.settle()
        self.journal.end(model)

    @property
    def global_batch(self) -> int:
        """Return the number of samples in a step of all ranks."""
        return self.learner.replica.layout.global_batch

    @property
    def epoch_steps(self) -> int:
        """Return the number of steps in a whole epoch."""
        most = self.loader.epoch_size // (self.learner.replica.layout.batch_size * self.config.accumulate)
        return min(most, self.config.steps_per_epoch or most)

    def train_epoch(self) -> None:
        """Train to the end of the epoch, then validate and save."""
        done, layout = self.position.samples // self.global_batch, self.learner.replica.layout
        batches = self.loader.load_epoch(self.position.epoch, skip=done * layout.batch_size * layout.accumulate)
        for number in range(done + 1, self.epoch_steps + 1):
            self.take_step(list(islice(batches, layout.accumulate)), last=number == self.epoch_steps)
            if number < self.epoch_steps:  # what is due at the end of the epoch is done there
                if is_due(self.config.evaluate_every, self.position.step):
                    self.evaluate()
                if is_due(self.config.save_every, self.position.step):
                    self.save()
            if self.vote.poll():
                self.leave_together()
        self.evaluate()
        self.position = Position(self.position.step, self.position.epoch + 1)
        self.save()

    def take_step(self, passes: list[Batch], *, last: bool) -> None:
        """Learn from one global batch, and report the loss if a line is due."""
        begun, step = self.position, self.position.step + 1
        lr = learning_rate(step, self.steps, self.config)
        loss = self.learner.take_step(passes, lr)
        self.position = Position(step, begun.epoch, begun.samples + self.global_batch)
        self.journal.tick(self.position)
        if step == 1 or last or is_due(self.config.log_every, step):
            # The only place that waits for the GPU.
            mean = float(distributed.all_reduce_mean(loss))
            self.journal.record_step(self.position, mean, lr)
            self.check(mean)
            self.unchecked = None
        else:
            self.unchecked = loss

    def check(self, loss: float) -> None:
        """Raise RunError, on all ranks alike, for a loss that is not finite, before it gets into a checkpoint."""
        if not math.isfinite(loss):
            raise RunError(f"step {self.position.step}: the loss is not finite")

    def save_all(self) -> Path:
        """Check the last loss, then save with all ranks; return the checkpoint's path."""
        if self.unchecked is not None:
            self.check(float(distributed.all_reduce_mean(self.unchecked)))
            self.unchecked = None
        return self.checkpoints.save(self.position)

    def evaluate(self) -> None:
        """Validate, unless there are no validation samples."""
        if not self.evaluator.size:
            return
        loss = self.evaluator.evaluate(self.vote)
        if loss is None:
            self.leave_together()
        self.journal.record_validation(self.position, loss)
        self.journal.restart_clock(self.position)

    def save(self) -> None:
        """Save a checkpoint, and exclude the time from the speed."""
        self.save_all()
        self.journal.restart_clock(self.position)

    def leave_together(self) -> NoReturn:
        """Save with all ranks, then end them with exit code 143."""
        path = self.save_all()
        self.checkpoints.finish()
        self.journal.tell_stop(f"step {self.position.step} saved in {path}")
        distributed.barrier()
        self.leave()

    def leave_alone(self) -> NoReturn:
        """Save on rank 0 what it can without the others, then exit with 143."""
        if self.world.is_main:
            step, path = self.position.step, self.checkpoints.save_alone(self.position)
            newest = self.checkpoints.newest()
            lost = f"not saved: a rank exited with its part of the model; newest checkpoint: {newest or 'none'}"
            self.journal.tell_stop(f"step {step} {f'saved in {path}' if path else lost}", can_resume=newest is not None)
        self.leave()

    def leave(self) -> NoReturn:
        """Finish the trackers, and exit with 143."""
        self.journal.close(EXIT_SIGTERM)
        distributed.leave(EXIT_SIGTERM)


def is_due(every: int, step: int) -> bool:
    """Return whether `every` divides `step`; never for 0."""
    return every > 0 and step % every == 0
