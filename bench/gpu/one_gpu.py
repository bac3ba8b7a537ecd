"""Several ranks on one GPU, with the real NCCL (as_host): the trainer in each way of parallel, and what ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass

from bench.gpu.faults import KILLED, NONE_LEFT, STOPPED
from bench.gpu.part import Outcome, PartError, require
from bench.gpu.steps import HALF, TRAINER, read_metrics
from bench.gpu.trial import RANKS, Running, Trial, last_line
from launcher.wording import count

STEPS = ["--epochs", "2", "--steps-per-epoch", str(HALF), "--log-every", "5", "--global-batch", "32", "--keep", "4"]
ENDLESS = ["--epochs", "1000", "--steps-per-epoch", "20", "--save-dir", "run"]
SPREAD = 0.02  # of the losses: bf16 has 8 bits, fp16 11, and each way adds in an order of its own
FREED_MIB = 1024  # a driver keeps some memory of its own
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Way:
    """How the ranks share the work of one training."""

    name: str
    ranks: int
    precision: str
    flags: tuple[str, ...]

    def words(self, trial: Trial, folder: str, *more: str) -> list[str]:
        """Return what `launch` is given."""
        program = [*TRAINER, *STEPS, "--amp", self.precision, *self.flags, "--save-dir", folder, *more]
        return ["singlenode", *trial.side_by_side(self.ranks, *program)]


WAYS = (
    Way("ddp", 2, "bf16", ("--parallel", "ddp")),
    Way("ddp-fp16", 2, "fp16", ("--parallel", "ddp")),
    Way("fsdp", 2, "bf16", ("--parallel", "fsdp")),
    Way("fsdp-fp16", 2, "fp16", ("--parallel", "fsdp")),
    Way("hsdp", 4, "bf16", ("--parallel", "fsdp", "--hsdp", "2")),
    Way("tp", 2, "bf16", ("--parallel", "tp")),
    Way("tp-fp16", 2, "fp16", ("--parallel", "tp")),
    Way("fsdp+tp", 4, "bf16", ("--parallel", "fsdp+tp", "--tensor-parallel", "2")),
)


def train_each_way(trial: Trial) -> Outcome:
    """Train in each way at the same time, then resume each from its first half."""
    ways = WAYS if trial.on_gpu else [way for way in WAYS if way.name in ("ddp", "fsdp")]
    finish(trial, [trial.start_launch(*way.words(trial, way.name)) for way in ways], trial.device)
    again = [f"{way.name}-again" for way in ways]
    checkpoints = [str(trial.folder / way.name / "checkpoints" / f"step_{HALF}") for way in ways]
    resumed = [
        trial.start_launch(*way.words(trial, folder, "--resume", checkpoint))
        for way, folder, checkpoint in zip(ways, again, checkpoints, strict=True)
    ]
    finish(trial, resumed, trial.device)
    losses = {name: last_loss(trial, name) for name in (*(way.name for way in ways), *again)}
    return judge_spread(losses)


def finish(trial: Trial, started: list[Running], device: str) -> None:
    """Wait for each training; PartError if one fails, or runs elsewhere."""
    for running in started:
        done = running.finish()
        done.require(r"^.*final loss", 0)
        done.find(rf"device  .*, {'nccl' if device == 'cuda' else 'gloo'}$")


def last_loss(trial: Trial, name: str) -> float:
    """Return the last loss that a training logged."""
    return float([line["loss"] for line in read_metrics(trial.folder / name) if "loss" in line][-1])


def judge_spread(losses: dict[str, float]) -> Outcome:
    """Return how far the losses are apart; PartError if a way of parallel ends elsewhere than the others."""
    low, high = min(losses.values()), max(losses.values())
    seen = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
    require(high - low <= SPREAD * low, f"the losses are {high / low - 1:.1%} apart: {seen}")
    return Outcome(f"{high / low - 1:.2%}", f"between the last losses of {count(len(losses), 'training')}: {seen}")


def stop_training(trial: Trial) -> Outcome:
    """Send SIGTERM to `launch` while two ranks train: they save together, and nothing is left."""
    running, _ = start_training(trial)
    began_at = time.monotonic()
    done = running.stop()
    seconds = time.monotonic() - began_at
    said = done.require(r"SIGTERM: step \d+ saved in .*", STOPPED)[0]
    return Outcome(f"{seconds:.1f} s", f"{said}; {done.find(NONE_LEFT)[0]}")


def kill_training(trial: Trial) -> Outcome:
    """Kill rank 1 of a training with SIGKILL: it is named first, and rank 0 ends in time."""
    running, pids = start_training(trial)
    began_at = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    done = running.finish()
    seconds = time.monotonic() - began_at
    cause = done.require(r"\S+ rank 1 failed first \(killed by SIGKILL\)", KILLED)[0]
    said = re.search(r"SIGTERM: .*", f"{done.output}\n{done.errors}")
    saved = said[0] if said else f"rank 0 didn't save, last: {last_line((trial.run_folder / 'node_0.log').read_text())}"
    return Outcome(f"{seconds:.1f} s", f"{cause}; {saved}; {done.find(NONE_LEFT)[0]}")


def start_training(trial: Trial) -> tuple[Running, list[int]]:
    """Start two ranks that train without end; return them once a checkpoint is there, with their process ids."""
    running = trial.start_launch("singlenode", *trial.side_by_side(2, *TRAINER, *ENDLESS))
    ranks = running.wait_for(rf"rank (\d) +\S+, {trial.device}.*, pid (\d+)", count=2)
    while not list((trial.folder / "run" / "checkpoints").glob("step_*/progress*")):
        if running.process.poll() is not None or trial.left_s <= 0:
            raise PartError(f"no checkpoint was saved: {running.finish().cause}")
        time.sleep(POLL_S)
    return running, [int(pid) for _, pid in sorted((found[1], found[2]) for found in ranks)]


def free_memory(trial: Trial) -> Outcome:
    """Kill a rank that holds three quarters of the GPU's memory; measure until the driver has it back."""
    before_mib = used_mib()
    running = trial.start_launch("singlenode", *trial.ranks(), RANKS, "hold_most_memory")
    pid = int(running.wait_for(rf"ready: rank 0 pid (\d+) on {trial.device}")[0][1])
    held_mib = used_mib() - before_mib
    began_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while used_mib() - before_mib > FREED_MIB:
        require(trial.left_s > 0, "the memory was not freed in time")
        time.sleep(POLL_S)
    freed_s = time.monotonic() - began_at
    done = running.finish()
    done.require(r"rank 0 failed first \(killed by SIGKILL\)", KILLED)
    ended_s = time.monotonic() - began_at
    return Outcome(f"{freed_s:.1f} s", f"until {held_mib >> 10} GiB were free; launch ended after {ended_s:.1f} s")


def used_mib() -> int:
    """Return the used memory of the first GPU."""
    argv = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout)
