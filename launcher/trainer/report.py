"""What rank 0 reports: the start, a line for each loss, metrics.jsonl and trackers, and how to continue the run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from launcher.distributed import SINGLE_PROCESS, TORCHRUN, World
from launcher.exchange import gather
from launcher.trainer.attempt import find_attempt
from launcher.trainer.checkpoint import Checkpoints, Position, find_best, find_whole
from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.data import Data, short
from launcher.trainer.parallel import ParallelDims, count_local

METRICS_FILE = "metrics.jsonl"
NAMES_SHOWN, RANKS_SHOWN = 8, 16
MOST_EXPONENT = 700.0  # e to the power of more isn't a float


def describe_start(
    config: TrainConfig, world: World, dims: ParallelDims, data: Data, batch_size: int, model: nn.Module
) -> list[str]:
    """Return the lines of the start report; every rank must call this. Raise ConfigError for other nodes than asked."""
    ranks: dict[tuple[int, str], int] = {}
    for place in gather((world.node_rank, world.host)):
        ranks[place] = ranks.get(place, 0) + 1
    hosts = [host for _, host in ranks]
    more = f" and {len(hosts) - NAMES_SHOWN} more" if len(hosts) > NAMES_SHOWN else ""
    named = ", ".join(hosts[:NAMES_SHOWN]) + more
    if config.nodes and config.nodes != len(ranks):
        raise ConfigError(f"--nodes {config.nodes}, but the ranks are on {len(ranks)}: {named}")
    for (_, host), number in ranks.items():
        if config.gpus_per_node not in (0, number):
            raise ConfigError(f"--gpus-per-node {config.gpus_per_node}, but the ranks on {host} are {number}")
    each = f", {min(ranks.values())} per node" if len(ranks) > 1 and len({*ranks.values()}) == 1 else ""
    on_gpu = world.device.type == "cuda"
    groups = "ranks" if dims.tp == 1 else f"groups of {dims.tp} ranks"
    factors = [f"{dims.dp_size} {groups}"] if dims.dp_size > 1 else []
    factors += [f"batch size {batch_size}", *([f"{config.accumulate} passes"] if config.accumulate > 1 else [])]
    samples = f"{batch_size * dims.dp_size * config.accumulate} samples per step ({' x '.join(factors)})"
    local, whole = count_local(model)
    lines = {
        "job": world.job_id or "",
        "nodes": f"{len(ranks)}: {named}" if len(ranks) > 1 else named,
        "ranks": f"{world.world_size}{each}, from {world.launched_by}",
        "device": f"{torch.cuda.get_device_name(world.device) if on_gpu else world.device.type}, {world.backend}",
        "batch": ", ".join(filter(None, [str(dims), samples])),
        "data": f"{data.source}, {short(data.train_size)} samples, {short(data.validation_size)} to validate",
        "model": f"{short(whole)} parameters",
        "saves": "" if config.evaluate_only else config.save_dir,
    }
    if any(number % dims.tp for number in ranks.values()):
        spans = f"some groups of {dims.tp} ranks span two nodes, so each matrix product waits for the network"
        lines["warning"] = spans
    report = [f"{name:<8}{said}" for name, said in lines.items() if said]
    if config.report_ranks == "on" or (config.report_ranks == "auto" and world.world_size <= RANKS_SHOWN):
        shard = f", {short(local)} of {short(whole)} parameters" if dims.is_sharded else ""
        report += gather(describe_rank(world) + shard)
    return report


def describe_rank(world: World) -> str:
    """Return a line that says where a rank runs, with nvidia-smi's UUID: another process may call that GPU cuda:0.

    `rank 3  node2, cuda:1 GPU-1f2e..., 80 GB, pid 4711`, where Slurm runs `rank 3  SLURMD_NODENAME=node2, ...`.
    """
    name, device = os.environ.get("SLURMD_NODENAME"), str(world.device)
    if world.device.type == "cuda":
        properties = torch.cuda.get_device_properties(world.device)
        uuid = getattr(properties, "uuid", "")
        device += f"{f' GPU-{uuid}' if uuid else ''}, {properties.total_memory / 2**30:.0f} GB"
    where = f"SLURMD_NODENAME={name}" if name else world.host
    return f"{f'rank {world.rank}':<7} {where}, {device}, pid {os.getpid()}"


class Reporter:
    """Print and record what the steps yield, on rank 0; on the others nothing."""

    def __init__(self, config: TrainConfig, world: World, data: Data, argv: Sequence[str], samples: int) -> None:
        self._config, self._world, self._data, self._argv = config, world, data, argv
        self._units_per_step = samples * data.units_per_sample
        self._losses: list[float] = []
        self._trackers: dict[str, Tracker] = {}
        self._began_at = time.perf_counter()
        self.restart_clock(0)

    def open(self, step: int) -> None:
        """Open metrics.jsonl and the trackers; ConfigError for one that isn't installed."""
        if self._config.evaluate_only:
            return
        folder, config = Path(self._config.save_dir), asdict(self._config)
        self._trackers = {METRICS_FILE: open_json_lines(folder, step, config)}
        for name in filter(None, map(str.strip, self._config.track.split(","))):
            if name not in TRACKERS:
                raise ConfigError(f"--track: unknown tracker {name!r}, must be one of {', '.join(TRACKERS)}")
            try:
                self._trackers[name] = TRACKERS[name](folder, step, config)
            except ImportError as error:
                fix = f"run pip install {name}"
                raise ConfigError(f"--track {name}: {error} on rank 0's host; fix: {fix}") from None
            except Exception as error:  # noqa: BLE001  # a server can raise anything, and the training goes on
                self._give_up(name, error)

    def say(self, *lines: str) -> None:
        """Print lines on rank 0."""
        if self._world.is_main:
            print("\n".join(lines), flush=True)

    def restart_clock(self, step: int) -> None:
        """Exclude the time before now from the speed, because it was not spent on training."""
        self._last_step, self._last_time = step, time.perf_counter()

    def record_step(self, position: Position, loss: float, norm: float, lr: float) -> None:
        """Report a step's loss and gradient norm, and the speed of all ranks together since the last line."""
        self._losses.append(loss)
        units = (position.step - self._last_step) * self._units_per_step
        speed = units / (time.perf_counter() - self._last_time)
        self.restart_clock(position.step)
        said = f"loss {loss:.3f} gradient norm {norm:.3g} {short(speed)} {self._data.unit}/s"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        peak_mb = peak_memory_bytes(self._world.device) >> 20
        figures = {"loss": loss, "lr": lr, "gradient_norm": norm, f"{self._data.unit}_per_s": round(speed, 1)}
        self._log(position, {**figures, "peak_memory_mb": peak_mb})

    def record_validation(self, position: Position, loss: float) -> None:
        """Report the validation loss, and for a text its perplexity: of how many tokens the model was left to guess."""
        said, figures = f"validation loss {loss:.3f}", {"validation_loss": loss}
        if self._data.unit == "tokens" and loss < MOST_EXPONENT:
            figures["validation_perplexity"] = math.exp(loss)
            said += f" perplexity {math.exp(loss):.4g}"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        self._log(position, figures)

    def end(self, model: Path, peak: str) -> None:
        """Print the final and the first loss, the path of the model, and the best checkpoint."""
        if self._losses:
            self.say(f"final loss {self._losses[-1]:.3f} (first {self._losses[0]:.3f}), {peak}, model in {model}")
        else:
            self.say(f"nothing left to train, model in {model}")
        with contextlib.suppress(OSError):  # whatever fails here, the training itself has succeeded
            if self._world.is_main and (best := find_best(find_whole(model.parent / "checkpoints"))):
                self.say(f"best validation loss {best[1]:.3f} in {best[0]}")

    def tell_how_to_continue(self, checkpoints: Checkpoints) -> None:
        """Print the command that continues a run that was stopped or failed, if it has a checkpoint."""
        with contextlib.suppress(OSError):  # the disk may be the cause of the failure
            if self._world.is_main and not self._config.evaluate_only and checkpoints.find_newest() is not None:
                self.say(f"to continue: {continue_command(self._argv, self._world, self._config.save_dir)}")

    def close(self, exit_code: int) -> None:
        """Finish the trackers; call it after saving, since one of them may be slow."""
        self._call_trackers(lambda tracker: tracker.finish(exit_code))

    def _log(self, position: Position, figures: Mapping[str, float]) -> None:
        elapsed_s = round(time.perf_counter() - self._began_at, 3)
        metrics = {"epoch": position.epoch, **figures, "elapsed_s": elapsed_s}
        self._call_trackers(lambda tracker: tracker.log(position.step, metrics))

    def _call_trackers(self, call: Callable[[Tracker], None]) -> None:
        """Call each tracker, and never again once it has failed: a server or a disk can raise anything."""
        for name, tracker in [*self._trackers.items()]:
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001, PERF203  # the training goes on
                del self._trackers[name]
                self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        print(f"{name} gets no more metrics: {reason}"[:500], file=sys.stderr, flush=True)


# ---- where metrics go --------------------------------------------------------------------------------------------


class Tracker(NamedTuple):
    """What logs the metrics of a step, and what ends the run there with its exit code."""

    log: Callable[[int, Mapping[str, float]], Any]
    finish: Callable[[int], Any]


def open_json_lines(folder: Path, step: int, config: Mapping[str, object]) -> Tracker:
    """Append one JSON object a line to metrics.jsonl; a resumed run repeats steps, so a step may occur twice."""
    path = folder / METRICS_FILE
    with path.open("ab+") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":  # a crash cut the last line off
            file.write(b"\n")

    def log(step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")

    return Tracker(log, lambda exit_code: None)


def open_tensorboard(folder: Path, step: int, config: Mapping[str, object]) -> Tracker:
    """Write event files in SAVE_DIR/tensorboard."""
    from torch.utils.tensorboard import SummaryWriter

    first = step + 1 if step else 0  # what an earlier attempt wrote for the steps that are repeated is hidden
    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=first)
    writer.add_text("config", "\n".join(f"    {name}: {value}" for name, value in config.items()), first)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a killed rank can't

    return Tracker(log, lambda exit_code: writer.close())


def open_mlflow(folder: Path, step: int, config: Mapping[str, object]) -> Tracker:
    """Start a run where MLFLOW_TRACKING_URI points; a resumed run continues it."""
    import mlflow

    known, states = folder / "mlflow_run_id", {0: "FINISHED", 143: "KILLED"}
    earlier = known.read_text().strip() if step and known.exists() else None
    known.write_text(mlflow.start_run(run_id=earlier).info.run_id)
    if earlier is None:
        mlflow.log_params(dict(config))
    return Tracker(
        lambda step, metrics: mlflow.log_metrics(dict(metrics), step=step),
        lambda exit_code: mlflow.end_run(states.get(exit_code, "FAILED")),
    )


def open_wandb(folder: Path, step: int, config: Mapping[str, object]) -> Tracker:
    """Start a run at wandb.ai, or where WANDB_BASE_URL points; WANDB_MODE=offline keeps it in ./wandb."""
    import wandb

    known = folder / "wandb_run_id"
    earlier: dict[str, Any] = {"id": known.read_text().strip(), "resume": "allow"} if step and known.exists() else {}
    run: Any = wandb.init(config=dict(config), **earlier)
    known.write_text(run.id)
    # wandb's own step can't go back, and would drop the steps that a resumed run repeats.
    run.define_metric("*", step_metric="step")
    return Tracker(
        lambda step, metrics: run.log({"step": step, **metrics}),
        lambda exit_code: run.finish(exit_code=exit_code),
    )


TRACKERS = {"tensorboard": open_tensorboard, "mlflow": open_mlflow, "wandb": open_wandb}


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that this rank has had so far: torch's on a GPU, or else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe_peak_memory(world: World) -> str:
    """Return the most memory that a rank has had, of 2**30 bytes as nvidia-smi counts; every rank must call this."""
    peaks = gather(peak_memory_bytes(world.device))
    where = f" on rank {peaks.index(max(peaks))} (the highest)" if world.world_size > 1 else ""
    said = f"{max(peaks) / 2**30:.3g} GB"
    if world.device.type != "cuda":
        return f"peak memory {said}{where}"
    total = torch.cuda.get_device_properties(world.device).total_memory / 2**30
    return f"peak GPU memory {said} of {total:.3g} GB{where}"


def continue_command(argv: Sequence[str], world: World, save_dir: str) -> str:
    """Return the command that continues the run: what was typed, with its directory and --resume, which win."""
    more = ["--save-dir", save_dir, "--resume"]
    words = shlex.join(argv if [*argv[-3:]] == more else [*argv, *more])
    program = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "train.py" else "-m launcher.trainer"
    command = find_attempt().command  # of `launch`
    if not command and world.launched_by == SINGLE_PROCESS:
        command = f"{shlex.quote(sys.executable)} {program}"
    if not command and world.launched_by == TORCHRUN and world.node_count == 1:
        command = f"torchrun --nproc-per-node {world.world_size} {program}"
    return f"{command or f'start it as before, with: {program}'} {words}"
