"""Train a model, in the order in which it happens: set up, steps, validation, saving, SIGTERM."""

from __future__ import annotations

import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import Checkpoints, Position, choose_folder, claim_folder
from launcher.trainer.config import NONE, ConfigError, RunError, TrainConfig, read_config
from launcher.trainer.data import Loader, load_data
from launcher.trainer.model import build_model
from launcher.trainer.parallel import AMP_TYPES, gradient_sync, make_cpu_group, on_main, parallelize, plan_dims, unshard
from launcher.trainer.report import Reporter, describe_peak_memory, describe_start

EXIT_SIGTERM = 128 + signal.SIGTERM
SILENT_EXIT_S = 1.0  # torchrun stops all ranks when the first one fails, but rank 0 must have time to say why


def run(argv: list[str]) -> int:
    """Train as the command line says; return the exit code: 2 for a wrong option, 143 after SIGTERM."""
    try:
        config = read_config(argv)
        exit_code = Trainer(config, distributed.init(config.distributed_backend, config.timeout), argv).train()
    except (ConfigError, RunError) as error:
        if distributed.is_main():
            print(error, file=sys.stderr)
        else:
            time.sleep(SILENT_EXIT_S)
        exit_code = 2 if isinstance(error, ConfigError) else 1
    except distributed.WorldError as error:
        print(error, file=sys.stderr)  # each rank has its own environment and device
        exit_code = 2
    except Exception:  # noqa: BLE001  # any error must show its traceback and end with exit code 1
        traceback.print_exc()
        exit_code = 1
    if exit_code in (0, 2):  # after anything else the other ranks may be gone, and NCCL would wait for them
        distributed.shutdown()
    return exit_code


class Trainer:
    """A run: set up by the constructor, then trained."""

    def __init__(self, config: TrainConfig, world: World, argv: Sequence[str] = ()) -> None:
        """Decide who does what and where it is saved; load the data; build model, optimizer and checkpoints.

        argv: what was typed, for the command that continues the run.
        """
        self.world, self.device = world, world.device
        self.group = group = make_cpu_group(world)
        self.dims = dims = plan_dims(config, world)
        self.samples_per_rank = dims.batch_size * config.accumulate
        self.global_batch = self.samples_per_rank * dims.dp_size
        save_dir, self.resumed = on_main(partial(choose_folder, config), group)
        self.config = config = replace(config, save_dir=save_dir)
        # The lock is held until the process ends.
        on_main(lambda: setattr(self, "lock", claim_folder(Path(save_dir))), group)
        self.data = data = load_data(config, group)
        self.loader = Loader(data, config, dims, world.device)

        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        self.model = build_model(config)
        self.module = parallelize(self.model, config, dims, world)
        parameters = group_parameters(self.model, config.weight_decay)
        self.optimizer = torch.optim.AdamW(parameters, config.lr, fused=True if self.device.type == "cuda" else None)
        # Matrix products are computed in a shorter type; the parameters keep theirs.
        self.autocast = torch.autocast(self.device.type, AMP_TYPES.get(config.amp), enabled=config.amp != "off")
        # fp16's small exponent loses small gradients: the loss is scaled up, and steps that overflow are skipped.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.amp == "fp16")
        self.checkpoints = Checkpoints(config, dims, world, group, data, self.model, self.optimizer, self.scaler)
        self.stop = StopSignal(group)
        self.reporter = Reporter(config, world, data, argv, self.global_batch)
        self.position = Position()
        self.loss: Tensor | None = None  # of the latest step, and the norm of its gradient
        self.norm: Any = None

        report = describe_start(config, world, dims, data, self.model)
        torch.manual_seed(config.seed + world.rank)  # from here on each rank draws its own
        if self.resumed:
            self.position, differences = self.checkpoints.resume(Path(self.resumed))
            report.append(f"resume  {self.resumed}, step {self.position.step} of epoch {self.position.epoch}")
            report += [f"changed {one}" for one in differences]
        elif config.resume != NONE:
            report.append("resume  nothing to resume, starting from scratch")
        epoch_steps = data.train_size // dims.dp_size // self.samples_per_rank
        self.epoch_steps = min(epoch_steps, config.steps_per_epoch or epoch_steps)
        epochs_left = config.epochs - self.position.epoch + 1
        self.steps = self.position.step - self.steps_done() + epochs_left * self.epoch_steps
        epochs = f"{config.epochs} epoch{'s' if config.epochs > 1 else ''} of {self.epoch_steps} steps"
        report.append(f"train   {epochs}, learning rate {config.lr:g}")
        on_main(partial(self.reporter.open, self.position.step), group)
        self.reporter.say(*report)
        self.reporter.restart_clock(self.position.step)

    def steps_done(self) -> int:
        """Return the number of steps done in this epoch; another batch size than before rounds it down."""
        return min(self.epoch_steps, self.position.samples // self.global_batch)

    def train(self) -> int:
        """Train to the end, or until SIGTERM; return the exit code, 0 or 143."""
        exit_code = 1
        try:
            try:
                self.run()
                exit_code = 0
            except Stopped:
                path = self.save()  # all ranks are after the same step
                self.reporter.say(f"SIGTERM: step {self.position.step} saved in {path}")
                distributed.barrier()
                exit_code = EXIT_SIGTERM
        except RuntimeError:
            # A collective failed: another rank has exited after SIGTERM too, or it died.
            if not self.stop.received:
                raise
            self.reporter.say(f"SIGTERM: step {self.position.step} not saved, because a rank has ended")
            exit_code = EXIT_SIGTERM
        finally:
            self.reporter.close(exit_code)
        return exit_code

    def run(self) -> None:
        """Train epoch by epoch: steps, validation, a checkpoint; at the end write model.pt."""
        config = self.config
        while self.position.epoch <= config.epochs:
            done = self.steps_done()
            batches = self.loader.load_epoch(self.position.epoch, skip=done * self.samples_per_rank)
            for number in range(done + 1, self.epoch_steps + 1):
                self.take_step(islice(batches, config.accumulate))
                step, is_last = self.position.step, number == self.epoch_steps
                if step == 1 or is_last or step % config.log_every == 0:
                    self.report_step()
                if not is_last:  # what is due at the end of the epoch is done there
                    if config.evaluate_every and step % config.evaluate_every == 0:
                        self.evaluate()
                    if config.save_every and step % config.save_every == 0:
                        self.save()
                if self.stop.poll():
                    raise Stopped
            self.evaluate()
            self.position = Position(self.position.step, self.position.epoch + 1)
            self.save()
        self.stop.finish()
        model = self.checkpoints.export()  # no rank may exit with 0 before the model is saved
        peak = describe_peak_memory(self.world)
        distributed.barrier()
        self.reporter.end(model, peak)

    def take_step(self, passes: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Update the weights with the mean gradient of all passes; it doesn't wait for the GPU."""
        config, step = self.config, self.position.step + 1
        self.loss = torch.zeros((), device=self.device)
        for number, batch in enumerate(passes, start=1):
            with gradient_sync(self.module, is_last=number == config.accumulate):
                with self.autocast:
                    loss = self.module(*batch) / config.accumulate
                self.scaler.scale(loss).backward()
            self.loss += loss.detach()
        self.scaler.unscale_(self.optimizer)
        # Nothing is longer than infinity, so that only measures.
        self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.steps, config)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.position = Position(step, self.position.epoch, self.position.samples + self.global_batch)

    def report_step(self) -> None:
        """Report the mean loss of all ranks; this waits for the GPU."""
        assert self.loss is not None  # a step has been taken
        loss, norm = float(distributed.all_reduce_mean(self.loss)), float(unshard(self.norm))
        if self.world.is_main:
            self.reporter.record_step(self.position, loss, norm, self.optimizer.param_groups[0]["lr"])
        self.check_finite("loss", loss)

    def check_finite(self, name: str, value: float) -> None:
        """Raise RunError, on all ranks alike, for a loss or gradient that isn't finite: the model is lost."""
        if not math.isfinite(value):
            raise RunError(f"step {self.position.step}: the {name} is not finite")

    def evaluate(self) -> None:
        """Report the mean loss over the validation samples, each counted once."""
        if not self.data.validation_size:
            return
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.model.eval()
        if self.config.evaluate_on == "all":
            self.add_losses(total, self.dims.dp_size, self.dims.dp_rank, self.stop.poll)
        else:
            on_main(lambda: self.add_losses(total, 1, 0, lambda: self.stop.received), self.group)
            self.stop.poll()
            self.stop.poll()  # reads the vote that the one before has started
        self.model.train()
        if self.stop.agreed:
            raise Stopped
        # Ranks that share matrix products have seen the same samples: both sums grow alike, so the mean stays the same.
        dist.all_reduce(total)
        loss = float(total[0] / total[1])
        if self.world.is_main:
            self.reporter.record_validation(self.position, loss)
        self.check_finite("validation loss", loss)
        self.reporter.restart_clock(self.position.step)

    def add_losses(self, total: Tensor, shares: int, share: int, must_stop: Callable[[], bool]) -> None:
        """Add the losses of a share of the validation samples to total[0], and their number to total[1]."""
        with torch.no_grad():
            for batch, number in self.loader.load_validation(shares, share):
                with self.autocast:
                    total[0] += self.model(*batch).double() * number
                total[1] += number
                if must_stop():
                    return

    def save(self) -> Path:
        """Save with all ranks, unless the newest loss or gradient says that the model is lost."""
        if self.loss is not None:
            self.check_finite("loss", float(distributed.all_reduce_mean(self.loss)))
            if not self.scaler.is_enabled():  # it skips steps whose gradient isn't finite
                self.check_finite("gradient", float(unshard(self.norm)))
        path = self.checkpoints.save(self.position)
        self.reporter.restart_clock(self.position.step)
        return path


def group_parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide the parameters into those with weight decay, the matrices, and those without.

    Norms and biases have one dimension, and must be free to grow; most rows of an embedding get no gradient in a
    step, but would shrink anyway. https://github.com/karpathy/minGPT, `configure_optimizers`, does the same.
    """
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    for name, parameter in model.named_parameters():
        decays = parameter.dim() > 1 and not name.startswith("embed_")
        groups[0 if decays else 1]["params"].append(parameter)
    return groups


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Return the learning rate of a step from 1 to `steps`: a linear rise, then a cosine decay."""
    warmup = min(config.warmup_steps, steps)
    if step <= warmup:
        return config.lr * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    low = config.lr * config.final_lr_fraction
    return low + (config.lr - low) * (1 + math.cos(math.pi * done)) / 2


class Stopped(Exception):
    """All ranks have agreed to stop after the same step."""


class StopSignal:
    """Whether any rank has got SIGTERM; all ranks get the same answer in the same step.

    The ranks don't get the signal at the same moment, and some may not get it at all, but a sharded model can be saved
    only by all of them together. So they vote in each step, and read the result one step later, when it has arrived.
    The votes use a gloo group, so they never wait for the GPU.
    """

    def __init__(self, group: Any) -> None:
        self.received = self.agreed = False
        self._group = group
        self._vote: tuple[Tensor, Any] | None = None
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: object) -> None:
        self.received = True

    def poll(self) -> bool:
        """Read the pending vote, and start the next one; every rank must call this equally often."""
        self.finish()
        if not self.agreed:
            ballot = torch.tensor(int(self.received))
            self._vote = ballot, dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return self.agreed

    def finish(self) -> None:
        """Wait for the pending vote, so that no rank exits while others wait for its vote."""
        if self._vote is not None:
            ballot, work = self._vote
            self._vote = None
            work.wait()
            self.agreed = bool(ballot)
