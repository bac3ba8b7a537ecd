"""What rank 0 reports: the start, a line for each loss, metrics.jsonl and trackers, and how to continue the run."""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from launcher.distributed import World
from launcher.exchange import gather
from launcher.trainer.checkpoint import Position, find_whole
from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.data import Data, short
from launcher.trainer.parallel import ParallelDims

METRICS_FILE = "metrics.jsonl"


def describe_start(config: TrainConfig, world: World, dims: ParallelDims, data: Data, model: nn.Module) -> list[str]:
    """Return the lines of the start report; every rank must call this. Raise ConfigError for other nodes than asked."""
    ranks = Counter(gather((world.node_rank, world.host)))  # of each node, in the order of the ranks
    names = ", ".join(host for _, host in ranks)
    if config.nodes not in (0, len(ranks)):
        raise ConfigError(f"--nodes {config.nodes}, but the ranks are on {len(ranks)}: {names}")
    for (_, host), number in ranks.items():
        if config.gpus_per_node not in (0, number):
            raise ConfigError(f"--gpus-per-node {config.gpus_per_node}, but the ranks on {host} are {number}")
    factors = f"batch size {dims.batch_size} x accumulate {config.accumulate} x data parallel {dims.dp_size}"
    samples = f"{dims.batch_size * config.accumulate * dims.dp_size} samples per step ({factors})"
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else world.device.type
    lines = {
        "job": world.job_id or "",
        "nodes": f"{len(ranks)}: {names}" if len(ranks) > 1 else names,
        "ranks": f"{world.world_size}, from {world.launched_by}",
        "device": f"{device}, {world.backend}",
        "batch": f"{dims.kind}, {samples}",
        "data": f"{data.source}, {short(data.train_size)} samples, {short(data.validation_size)} to validate",
        "model": f"{short(sum(one.numel() for one in model.parameters()))} parameters",
        "saves": config.save_dir,
    }
    if any(number % dims.tp for number in ranks.values()):
        lines["warning"] = f"some of the {dims.tp} ranks that share matrix products are on another node, which is slow"
    return [f"{name:<8}{said}" for name, said in lines.items() if said] + gather(describe_rank(world))


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
        self._tokens_per_step = samples * config.context
        self._losses: list[float] = []
        self._trackers: dict[str, Tracker] = {}
        self._began_at = time.perf_counter()
        self.restart_clock(0)

    def open(self, step: int) -> None:
        """Open metrics.jsonl and the trackers; ConfigError for one that isn't installed."""
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
        tokens = (position.step - self._last_step) * self._tokens_per_step
        speed = tokens / (time.perf_counter() - self._last_time)
        self.restart_clock(position.step)
        said = f"loss {loss:.3f} gradient norm {norm:.3g} {short(speed)} tokens/s"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        peak_mb = peak_memory_bytes(self._world.device) >> 20
        figures = {"loss": loss, "lr": lr, "gradient_norm": norm, "tokens_per_s": round(speed, 1)}
        self._log(position, {**figures, "peak_memory_mb": peak_mb})

    def record_validation(self, position: Position, loss: float) -> None:
        """Report the validation loss, and its perplexity: of how many tokens the model was left to guess."""
        perplexity = math.exp(min(loss, 700))  # e to the power of more isn't a float
        said = f"validation loss {loss:.3f} perplexity {perplexity:.4g}"
        self.say(f"epoch {position.epoch} step {position.step} {said}")
        self._log(position, {"validation_loss": loss, "validation_perplexity": perplexity})

    def end(self, model: Path, peak: str) -> None:
        """Print the final and the first loss, and the path of the model."""
        if self._losses:
            self.say(f"final loss {self._losses[-1]:.3f} (first {self._losses[0]:.3f}), {peak}, model in {model}")
        else:
            self.say(f"nothing left to train, model in {model}")

    def close(self, exit_code: int) -> None:
        """Print the command that continues a run that has a checkpoint, if it was stopped or failed; end the trackers.

        Call it after saving, since a tracker may be slow.
        """
        if exit_code and self._world.is_main and (found := find_whole(Path(self._config.save_dir, "checkpoints"))):
            command = continue_command(self._argv, self._config.save_dir)
            self.say(f"newest checkpoint: {found[-1]}", f"to continue: {command}")
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
    peak = max(gather(peak_memory_bytes(world.device))) / 2**30
    return f"peak {'GPU ' if world.device.type == 'cuda' else ''}memory {peak:.3g} GB"


def continue_command(argv: Sequence[str], save_dir: str) -> str:
    """Return how to continue the run: with the same arguments, and its directory and --resume, which win."""
    more = ["--save-dir", save_dir, "--resume"]
    return f"start it as before, with: {shlex.join(argv if [*argv[-3:]] == more else [*argv, *more])}"
