"""The training loop: step, log, validate, save; and save before the end when SIGTERM comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from torch import Tensor
from torch.utils.data import DataLoader

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import Checkpoints, Position
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch, SkippingSampler, build_loader, load_task, share_from_main
from launcher.trainer.evaluation import Evaluator
from launcher.trainer.journal import Journal, measure_speed
from launcher.trainer.model import build_model
from launcher.trainer.optimization import Learner, build_learner, learning_rate
from launcher.trainer.options import RunError
from launcher.trainer.ownership import Claim
from launcher.trainer.parallel import Layout, parallelize, plan_layout
from launcher.trainer.report import Node, check_nodes, describe_ranks, describe_start, gather_nodes
from launcher.trainer.save_folder import SaveError
from launcher.trainer.stopping import EXIT_SIGTERM, StopVote


def train(config: TrainConfig, world: World, argv: Sequence[str] = ()) -> None:
    """Do all that the config asks for; after SIGTERM save, and end every rank with 143.

    argv: what was typed, for the command that goes on with the run.
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
    """Train, with the directory that is this run's own."""
    journal = Journal(config, world, argv)
    try:
        share_from_main(journal.open, world)
        task = load_task(config, world)
        loader, sampler = build_loader(task, config, layout, world)

        model = build_model(config).to(world.device)
        speed = measure_speed(config, world, layout, task, model)
        report = describe_start(world, nodes, layout, task, model)
        distributed.seed_everything(config.seed)  # from here on each rank may draw other numbers
        learner = build_learner(parallelize(model, layout, config, world), config, world.device)
        evaluator = Evaluator(task, config, learner, world)

        checkpoints = Checkpoints(config, world, learner)
        position = checkpoints.resume()
        vote = StopVote(world)
        run = Run(
            config=config,
            world=world,
            learner=learner,
            loader=loader,
            sampler=sampler,
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
    """A run on its way: what it is made of, and how far it is."""

    config: TrainConfig
    world: World
    learner: Learner
    loader: DataLoader[Batch]
    sampler: SkippingSampler
    evaluator: Evaluator
    checkpoints: Checkpoints
    journal: Journal
    position: Position
    vote: StopVote
    unchecked: Tensor | None = None

    def __post_init__(self) -> None:
        """Count the steps of the whole run, for the learning rate and the progress."""
        left = (self.config.epochs - self.position.epoch + 1) * self.epoch_steps
        self.steps = self.position.step + left - self.position.samples // self.global_batch

    def train(self) -> None:
        """Train to the end of the last epoch."""
        try:
            while self.position.epoch <= self.config.epochs:
                self.train_epoch()
            self.vote.finish()
            # Nobody ends well before the model is there.
            model = self.checkpoints.export()
            distributed.barrier()
        except (RuntimeError, SaveError):
            # A collective failed: a peer that was stopped too has left, or it died.
            if not self.vote.requested:
                raise
            self.leave_alone()
        self.journal.end(model)

    @property
    def global_batch(self) -> int:
        """Count the samples of a step."""
        return self.learner.replica.layout.global_batch

    @property
    def epoch_steps(self) -> int:
        """Count the steps of a whole epoch."""
        most = self.sampler.epoch_size // (self.learner.replica.layout.batch_size * self.config.accumulate)
        return min(most, self.config.steps_per_epoch or most)

    def train_epoch(self) -> None:
        """Train to the end of the epoch, then validate and save."""
        done, layout = self.position.samples // self.global_batch, self.learner.replica.layout
        self.sampler.set_epoch(self.position.epoch, skip=done * layout.batch_size * layout.accumulate)
        batches = iter(self.loader)
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
        """Learn from one global batch, and tell the loss where a line is due."""
        begun, step = self.position, self.position.step + 1
        lr = learning_rate(step, self.steps, self.config)
        loss = self.learner.take_step(passes, lr)
        self.position = Position(step, begun.epoch, begun.samples + self.global_batch)
        self.journal.tick(self.position)
        if step == 1 or last or is_due(self.config.log_every, step):
            # The one place where the GPU is waited for.
            mean = float(distributed.all_reduce_mean(loss))
            self.journal.record_step(self.position, mean, lr)
            self.check(mean)
            self.unchecked = None
        else:
            self.unchecked = loss

    def check(self, loss: float) -> None:
        """End the run, on all ranks alike, before a loss that is lost gets into a checkpoint."""
        if not math.isfinite(loss):
            raise RunError(f"step {self.position.step}: the loss is not finite")

    def save_all(self) -> Path:
        """Save with all ranks what is worth it."""
        if self.unchecked is not None:
            self.check(float(distributed.all_reduce_mean(self.unchecked)))
            self.unchecked = None
        return self.checkpoints.save(self.position)

    def evaluate(self) -> None:
        """Validate, unless nothing is kept for it."""
        if not self.evaluator.size:
            return
        loss = self.evaluator.evaluate(self.vote)
        if loss is None:
            self.leave_together()
        self.journal.record_validation(self.position, loss)
        self.journal.restart_clock(self.position)

    def save(self) -> None:
        """Save a checkpoint to go on from."""
        self.save_all()
        self.journal.restart_clock(self.position)

    def leave_together(self) -> NoReturn:
        """Save with all ranks, and end them with 143 when that is done."""
        path = self.save_all()
        self.journal.tell_stop(f"step {self.position.step} saved in {path}")
        distributed.barrier()
        self.leave()

    def leave_alone(self) -> NoReturn:
        """Save on rank 0 what it can without the others, and end with 143."""
        if self.world.is_main:
            step, path = self.position.step, self.checkpoints.save_alone(self.position)
            newest = self.checkpoints.newest()
            lost = f"not saved, a rank has left with its part; newest is {newest or 'none'}"
            self.journal.tell_stop(f"step {step} {f'saved in {path}' if path else lost}", can_resume=newest is not None)
        self.leave()

    def leave(self) -> NoReturn:
        """End with 143."""
        self.journal.close(EXIT_SIGTERM)
        distributed.leave(EXIT_SIGTERM)


def is_due(every: int, step: int) -> bool:
    """Be true in each step that `every` divides; never for 0."""
    return every > 0 and step % every == 0
