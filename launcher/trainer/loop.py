"""The training loop: step, log, validate, save; after SIGTERM, save and exit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoints.checkpoints import Checkpoints, Position
from launcher.trainer.checkpoints.save_folder import SaveError
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Batch, Loader, build_loader, load_task
from launcher.trainer.evaluation import Evaluator
from launcher.trainer.journal import Journal, measure_speed
from launcher.trainer.model import outline_model
from launcher.trainer.optimization import Learner, build_learner
from launcher.trainer.options import ConfigError, RunError
from launcher.trainer.ownership import Claim
from launcher.trainer.parallel import count_shard, make_whole, parallelize
from launcher.trainer.precision import choose_tf32
from launcher.trainer.randomness import seed_ranks
from launcher.trainer.rank0_work import make_cpu_group, share_from_main
from launcher.trainer.rank_table import RankTable, plan_ranks
from launcher.trainer.report import (
    Node,
    check_nodes,
    describe_peak_memory,
    describe_ranks,
    describe_start,
    gather_nodes,
)
from launcher.trainer.schedule import Schedule, learning_rate, plan_steps
from launcher.trainer.stopping import StopVote, leave, leave_alone, leave_together


def train(config: TrainConfig, world: World, argv: Sequence[str] = ()) -> None:
    """Run the training that the config describes; after SIGTERM save, and end every rank with exit code 143.

    argv: what was typed, for the command that continues the run.
    """
    nodes = gather_nodes(world)
    check_nodes(nodes, config)
    table = plan_ranks(config, world)
    claim = Claim(config, world)
    try:
        train_in_folder(claim.take(), world, nodes, table, argv)
    finally:
        claim.release()


def train_in_folder(
    config: TrainConfig, world: World, nodes: Sequence[Node], table: RankTable, argv: Sequence[str]
) -> None:
    """Train and save in the directory that this run has claimed."""
    journal = Journal(config, world, argv)
    try:
        share_from_main(journal.open, world)
        group = make_cpu_group(world.timeout_s)
        task = load_task(config, world, group)
        loader = build_loader(task, config, table, world)

        choose_tf32(config, world.device)
        model = outline_model(config, task.vocabulary)
        speed = measure_speed(config, world, table, task, model)
        report = describe_start(world, nodes, table, task, model)
        seed_ranks(config.seed, 0, table)  # from here on each data-parallel rank draws its own numbers
        learner = build_learner(parallelize(model, table, config, world), config, world.device)
        evaluator = Evaluator(loader, config, learner, world)

        checkpoints = Checkpoints(config, world, learner, group, task.vocabulary)
        position = checkpoints.resume()
        schedule = plan_steps(config, table, loader.epoch_size)
        vote = StopVote(world)
        run = Run(
            config=config,
            world=world,
            learner=learner,
            loader=loader,
            schedule=schedule,
            steps=schedule.count_steps(position),
            evaluator=evaluator,
            checkpoints=checkpoints,
            journal=journal,
            position=position,
            vote=vote,
        )
        if not config.evaluate_only:
            report += f"\ntrain   {schedule.describe()}, learning rate {config.lr:g}\nsaves   {config.save_dir}"
        report += checkpoints.describe_resume(position)
        report += describe_ranks(config, world, count_shard(learner.replica))
        journal.begin(position, run.steps, speed, report)
        if config.evaluate_only:
            run.evaluate_checkpoint()
        else:
            run.train()
    except Exception:
        journal.tell_failure()
        journal.close(1)
        raise
    journal.close(0)


@dataclass
class Run:
    """A run in progress: its parts, its number of steps in all, and its position."""

    config: TrainConfig
    world: World
    learner: Learner
    loader: Loader
    schedule: Schedule
    steps: int
    evaluator: Evaluator
    checkpoints: Checkpoints
    journal: Journal
    position: Position
    vote: StopVote
    unchecked: Tensor | None = None
    validated: tuple[int, float] | None = None  # the step of the latest validation, and its loss

    def train(self) -> None:
        """Train to the end of the last epoch."""
        try:
            while self.position.epoch <= self.config.epochs:
                self.train_epoch()
            self.vote.finish()
            # No rank may exit with 0 before the model is saved.
            model = self.checkpoints.export()
            peak = describe_peak_memory(self.world)
            distributed.barrier()
        except (RuntimeError, SaveError) as error:
            # A collective failed: another rank has exited after SIGTERM too, or it died.
            if not self.vote.requested:
                raise
            leave_alone(self.journal, self.position, self.checkpoints, self.world, error)
        finally:
            self.checkpoints.settle()
        self.journal.end(model, peak)

    def train_epoch(self) -> None:
        """Train to the end of the epoch, then validate and save."""
        done, steps = self.schedule.steps_done(self.position), self.schedule.epoch_steps
        batches = self.loader.load_epoch(self.position.epoch, skip=done * self.schedule.samples_per_rank)
        for number in range(done + 1, steps + 1):
            self.take_step(list(islice(batches, self.config.accumulate)), last=number == steps)
            if number < steps:  # what is due at the end of the epoch is done there
                if is_due(self.config.evaluate_every, self.position.step):
                    self.evaluate()
                if is_due(self.config.save_steps, self.position.step):
                    self.save()
            if self.vote.poll():
                self.stop()
        self.evaluate()
        epoch, self.position = self.position.epoch, Position(self.position.step, self.position.epoch + 1)
        if is_due(self.config.save_epochs, epoch) or epoch == self.config.epochs:
            self.save()

    def take_step(self, passes: list[Batch], *, last: bool) -> None:
        """Learn from one global batch, and report the loss if a line is due."""
        begun, step = self.position, self.position.step + 1
        lr = learning_rate(step, self.steps, self.config)
        is_reported = step == 1 or last or is_due(self.config.log_every, step)
        loss, norm = self.learner.take_step(passes, lr, measures=is_reported)
        self.position = Position(step, begun.epoch, begun.samples + self.schedule.global_batch)
        self.journal.tick(self.position)
        if is_reported:
            assert norm is not None  # it was asked for
            # The only place that waits for the GPU.
            mean = float(distributed.all_reduce_mean(loss))
            self.journal.record_step(self.position, mean, lr, float(make_whole(norm)))
            self.check(mean)
            self.unchecked = None
        else:
            self.unchecked = loss

    def check(self, loss: float) -> None:
        """Raise RunError, on all ranks alike, for a loss that is not finite; the update after it isn't known yet."""
        if not math.isfinite(loss):
            raise RunError(f"step {self.position.step}: the loss is not finite")

    def evaluate(self) -> None:
        """Validate, unless there are no validation samples."""
        if not self.evaluator.size:
            return
        loss = self.evaluator.evaluate(self.vote)
        if loss is None:
            self.stop()
        self.journal.record_validation(self.position, loss)
        self.check(loss)
        self.validated = self.position.step, loss
        self.journal.restart_clock(self.position)

    def save(self) -> Path:
        """Check the last loss, save with all ranks, exclude the time from the speed; return the checkpoint's path."""
        if self.unchecked is not None:
            self.check(float(distributed.all_reduce_mean(self.unchecked)))
            self.unchecked = None
        step, loss = self.validated or (None, None)
        path = self.checkpoints.save(self.position, loss if step == self.position.step else None)
        self.journal.restart_clock(self.position)
        return path

    def evaluate_checkpoint(self) -> None:
        """Validate what was resumed, and save nothing, also after SIGTERM."""
        if not self.evaluator.size:
            raise ConfigError("evaluate_only needs validation samples; fix: set validation_fraction")
        begun = self.position
        ended = begun.epoch - 1 if begun.epoch > 1 and not begun.samples else begun.epoch  # the epoch that ended there
        loss = self.evaluator.evaluate(self.vote)
        if loss is None:
            leave(self.journal)
        self.journal.record_validation(replace(begun, epoch=ended), loss)

    def stop(self) -> NoReturn:
        """Save with all ranks after SIGTERM, then end them with exit code 143."""
        saved = self.save()
        self.checkpoints.finish()
        leave_together(self.journal, self.position, saved)


def is_due(every: int, step: int) -> bool:
    """Return whether `every` divides `step`; never for 0."""
    return every > 0 and step % every == 0
