"""What rank 0 reports during a run: lines on the screen, and metrics for the trackers; other ranks are silent.

Its last line is the command that continues the run: what was typed, with the run's directory and --resume.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from launcher import distributed
from launcher.distributed import SINGLE_PROCESS, TORCHRUN, Attempt, World, find_attempt
from launcher.trainer.checkpoints.checkpoints import Position
from launcher.trainer.checkpoints.save_folder import explain, find_best, find_newest, find_whole
from launcher.trainer.config import TrainConfig
from launcher.trainer.curve import check_picture, plot_losses
from launcher.trainer.data import Task, short
from launcher.trainer.flops import flops_per_token, peak_flops, utilization
from launcher.trainer.options import flag
from launcher.trainer.progress import Progress
from launcher.trainer.rank_table import RankTable
from launcher.trainer.report import peak_memory_bytes
from launcher.trainer.trackers import METRICS_FILE, Trackers, open_trackers

MOST_EXPONENT = 700.0  # e to the power of more isn't a float


@dataclass(frozen=True)
class Speed:
    """What is needed to compute the speed: the size of a step, its FLOPs, and the GPUs' peak."""

    unit: str
    units_per_step: int
    flops_per_unit: float
    peak: float | None
    ranks: int

    def describe(self, units_per_s: float) -> str:
        """Return `61.2k tokens/s`; for a known GPU add the share of its peak that is used."""
        used = self.use(units_per_s)
        return f"{short(units_per_s)} {self.unit}/s" + (f", {used:.0%} MFU" if used is not None else "")

    def use(self, units_per_s: float) -> float | None:
        """Return the model FLOPs utilization, or None if the peak is unknown."""
        return utilization(units_per_s, self.flops_per_unit, self.peak, self.ranks) if self.peak else None


def measure_speed(config: TrainConfig, world: World, table: RankTable, task: Task, model: nn.Module) -> Speed:
    """Compute what a step of this model costs; for the regression, utilization would mean nothing."""
    computing = sum(weights.numel() for name, weights in model.named_parameters() if not name.startswith("embed"))
    peak = None
    if world.device.type == "cuda" and config.kind == "text":
        peak = find_peak(torch.cuda.get_device_name(world.device), config)
    flops = flops_per_token(computing, config.layers, config.dim, config.context)
    return Speed(task.unit, table.global_batch * task.units_per_sample, flops, peak, world.world_size)


def find_peak(device_name: str, config: TrainConfig) -> float | None:
    """Return the peak operations per second of the type in which this run multiplies matrices; None if unknown.

    A GPU without TF32 computes in fp32 instead.
    """
    if config.amp != "off":
        return peak_flops(device_name, config.amp)
    return (peak_flops(device_name, "tf32") if config.tf32 else None) or peak_flops(device_name, "fp32")


class Journal:
    """Print what the steps yield, and pass it to the trackers."""

    def __init__(self, config: TrainConfig, world: World, argv: Sequence[str] = ()) -> None:
        self._config = config
        self._world = world
        self._argv = argv  # what was typed, for the command that continues the run
        self._is_main = world.is_main
        self._losses: list[float] = []
        self._progress: Progress | None = None

    def open(self) -> None:
        """Open the trackers on rank 0, before training takes any time."""
        if self._config.plot:
            check_picture(Path(self._config.plot))
        if self._config.evaluate_only:
            self._trackers = Trackers([])
            return
        names = [name.strip() for name in self._config.track.split(",") if name.strip()]
        self._trackers = open_trackers(names, Path(self._config.save_dir))

    def begin(self, position: Position, steps: int, speed: Speed, report: str) -> None:
        """Print the start report, and start the clock."""
        self._speed = speed
        self._start_time = time.perf_counter()
        self.restart_clock(position)
        if self._is_main:
            self.say(report)
            self._trackers.start(asdict(self._config), position.step)
            self._progress = Progress(steps, sys.stderr, first_step=position.step)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self._is_main:
            if self._progress is not None:
                self._progress.clear()
            print(text, flush=True)

    def tick(self, position: Position) -> None:
        """Update the progress line, if there is a terminal."""
        if self._progress is not None:
            self._progress.update(position.step)

    def restart_clock(self, position: Position) -> None:
        """Exclude the time before now from the speed, because it was not spent on training."""
        self._last_step, self._last_time = position.step, time.perf_counter()

    def record_step(self, position: Position, loss: float, lr: float, norm: float) -> None:
        """Report a step's loss and gradient norm, and the speed of all ranks together since the last line."""
        if not self._is_main:
            return
        self._losses.append(loss)
        units = (position.step - self._last_step) * self._speed.units_per_step
        units_per_s = units / (time.perf_counter() - self._last_time)
        self.restart_clock(position)
        said = f"loss {loss:.3f} gradient norm {norm:.3g} {self._speed.describe(units_per_s)}"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        used = self._speed.use(units_per_s)
        figures = {"loss": loss, "lr": lr, "gradient_norm": norm, f"{self._speed.unit}_per_s": round(units_per_s, 1)}
        figures["peak_memory_mb"] = peak_memory_bytes(self._world.device) >> 20
        self._log(position, figures if used is None else {**figures, "mfu": round(used, 4)})

    def record_validation(self, position: Position, loss: float) -> None:
        """Report the validation loss, and for a text its perplexity: of how many tokens the model was left to guess."""
        said, figures = f"validation loss {loss:.3f}", {"validation_loss": loss}
        if self._config.kind == "text" and loss < MOST_EXPONENT:
            figures["validation_perplexity"] = math.exp(loss)
            said += f" perplexity {figures['validation_perplexity']:.4g}"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        self._log(position, figures)

    def end(self, model: Path, peak: str) -> None:
        """Print the final and the first loss, the path of the model and the best checkpoint; draw the curve.

        peak: the most memory that a rank has had, in words.
        """
        if not self._losses:
            self.say(f"nothing left to train, model in {model}")
        else:
            self.say(f"final loss {self._losses[-1]:.3f} (first {self._losses[0]:.3f}), {peak}, model in {model}")
        self._tell_best()
        self.say(f"to train longer: {self._command(self._config.epochs + 1)}")
        if self._is_main and self._config.plot:
            self._draw()

    def _tell_best(self) -> None:
        """Print which checkpoint has the best validation loss, if one was validated."""
        if self._is_main:
            with contextlib.suppress(OSError):  # whatever fails here, the training itself has succeeded
                if best := find_best(find_whole(Path(self._config.save_dir) / "checkpoints")):
                    self.say(f"best validation loss {best[1]:.3f} in {best[0]}")

    def close(self, exit_code: int) -> None:
        """Finish the trackers; call it after saving, since one of them may be slow."""
        if self._progress is not None:
            self._progress.close()
            self._trackers.finish(exit_code)

    def tell_stop(self, text: str, *, can_resume: bool = True) -> None:
        """Print how a stopped run was saved, and the command that continues it."""
        self.say(f"SIGTERM: {text}")
        if can_resume:
            self.say(f"to continue: {self._command()}")

    def tell_failure(self) -> None:
        """Print the command that continues a failed run, unless it hasn't begun or has no checkpoint."""
        if self._progress is not None and not self._config.evaluate_only:
            with contextlib.suppress(OSError):  # the disk may be the cause of the failure
                if find_newest(Path(self._config.save_dir) / "checkpoints"):
                    self.say(f"to continue: {self._command()}")

    def _command(self, epochs: int = 0) -> str:
        return continue_command(self._argv, self._world, find_attempt(), self._config.save_dir, epochs)

    def _draw(self) -> None:
        try:
            plot_losses(Path(self._config.save_dir) / METRICS_FILE, Path(self._config.plot))
        except Exception as error:  # noqa: BLE001  # whatever fails here, the training itself has succeeded
            print(f"warning: can't draw {self._config.plot}: {explain(error)}", file=sys.stderr)

    def _log(self, position: Position, figures: Mapping[str, float]) -> None:
        if self._is_main:
            elapsed_s = round(time.perf_counter() - self._start_time, 3)
            self._trackers.log(position.step, {"epoch": position.epoch, **figures, "elapsed_s": elapsed_s})


def continue_command(argv: Sequence[str], world: World, attempt: Attempt, save_dir: str, epochs: int = 0) -> str:
    """Return a command line to paste; `...` replaces what the ranks can't see of torchrun or mpirun on several nodes.

    epochs: the total number of epochs, to extend a run that has finished.
    """
    replaced = ("--save-dir", "--resume", *(("--epochs",) if epochs else ()))
    words = [*leave_out(argv, replaced), "--save-dir", save_dir]
    words += ["--epochs", str(epochs)] if epochs else []
    starter = attempt.command or f"{describe_starter(world, attempt)} {shlex.join(name_program(argv))}"
    return f"{starter} {shlex.join([*words, '--resume'])}"


def describe_starter(world: World, attempt: Attempt) -> str:
    """Return the start of the command line, before the program."""
    python = shlex.quote(name_python())
    if world.launched_by == SINGLE_PROCESS:
        return python
    if world.job_id is not None:
        return f"{shlex.join(plan_step(world, attempt.partition))} {python}"
    if world.launched_by == TORCHRUN:
        return f"torchrun --nproc-per-node {world.world_size}" if world.node_count == 1 else "torchrun ..."
    return f"{world.launched_by} ... {python}"


def plan_step(world: World, partition: str) -> list[str]:
    """Return an srun for as many ranks on as many nodes, in this Slurm job or, once it is over, in one of its own."""
    tasks, left = divmod(world.world_size, world.node_count)
    step = [f"--ntasks={world.world_size}"] if left else [f"--ntasks-per-node={tasks}"]
    step += [f"--cpus-per-task={distributed.cpu_count()}"]  # a step gets one CPU per task since Slurm 22.05
    step += [f"--gpus-per-node={world.local_world_size}"] if world.device.type == "cuda" else []
    return ["srun", f"--nodes={world.node_count}", *step, *([f"--partition={partition}"] if partition else [])]


def name_python() -> str:
    """Return the name of this Python if typing it starts this one, or else its path."""
    name = Path(sys.executable).name
    return name if shutil.which(name) == sys.executable else sys.executable


def name_program(argv: Sequence[str]) -> list[str]:
    """Return what Python runs: the script that was typed with these options, such as train.py, or else the module."""
    is_script = getattr(sys.modules["__main__"], "__spec__", None) is None and sys.argv[0].endswith(".py")
    return [sys.argv[0]] if is_script and list(argv) == sys.argv[1:] else ["-m", "launcher.trainer"]


def leave_out(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words of a command line without these options and their values."""
    kept: list[str] = []
    is_value = False  # of an omitted option
    for word in argv:
        if word.startswith("--"):
            name, equals, _ = flag(word[2:]).partition("=")
            is_value = name in names and not equals
            if name in names:
                continue
        elif is_value:
            is_value = False
            continue
        kept.append(word)
    return kept
