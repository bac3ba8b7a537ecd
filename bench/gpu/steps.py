"""The trainer on a GPU: its speed against a plain loop, fp16, and resuming to the last bit."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.part import NotRunError, Outcome, require
from bench.gpu.trial import RANKS, Trial
from bench.training import CPU_ONLY, ON_A_GPU, PLAIN_LIMIT, SMALL, Way, find_ratio, take_turn
from launcher.wording import count

WEIGHTS = Path(__file__).with_name("weights.py")
TRAINER = ("-m", "launcher.trainer")
MOST_TURNS = 3
FEW_STEPS = replace(SMALL, steps=30)
LEAST_FALL = 0.75  # of the first loss
SHORT_RUN = ["--epochs", "2", "--steps-per-epoch", "20", "--log-every", "20", "--keep", "4", "--dropout", "0.1"]
HALF, WHOLE = 20, 40  # steps
# Without it, cuBLAS may use its workspaces in any order (docs.nvidia.com/cuda/cublas, results reproducibility).
CUBLAS_IN_ORDER = "CUBLAS_WORKSPACE_CONFIG=:4096:8"


def compare_ddp(trial: Trial) -> Outcome:
    """Compare with a plain loop that uses DDP, or with one process without it."""
    return compare_with_plain_loop(trial, "ddp")


def compare_fsdp(trial: Trial) -> Outcome:
    """Compare with a plain loop that uses FSDP2."""
    return compare_with_plain_loop(trial, "fsdp")


def compare_with_plain_loop(trial: Trial, kind: str) -> Outcome:
    """Take turns with the plain loop as long as there is time for another, at most three."""
    way = Way(kind, min(trial.gpus, 2), short=True) if trial.on_gpu else Way(kind, 2)
    work, env = (ON_A_GPU, {}) if trial.on_gpu else (FEW_STEPS, CPU_ONLY)
    text = work.write_text(trial.folder / "text", way.processes)
    turns: list[tuple[float, float]] = []
    longest_s = 0.0
    while len(turns) < MOST_TURNS and (not turns or (trial.on_gpu and longest_s < trial.left_s)):
        began_at = time.monotonic()
        turns.append(take_turn(work, way, text, env=env, execute=trial.execute))
        longest_s = max(longest_s, time.monotonic() - began_at)
    return judge_speed(turns, way.processes, is_limited=trial.on_gpu)


def judge_speed(turns: Sequence[tuple[float, float]], ranks: int, *, is_limited: bool) -> Outcome:
    """Return the ratio of the two speeds; PartError if the limit applies and isn't reached."""
    ratio, (mine, other) = find_ratio(turns), turns[-1]
    seen = f"{mine:.0f} against {other:.0f} tokens/s, {count(ranks, 'rank')}, median of {count(len(turns), 'turn')}"
    if not is_limited:
        return Outcome(f"{ratio:.2f}", f"{seen}; no limit in a run this short: `python -m bench trainer` has one")
    require(ratio >= PLAIN_LIMIT, f"{ratio:.3f} of the plain loop, at least {PLAIN_LIMIT} is required: {seen}")
    return Outcome(f"{ratio:.3f}", seen)


def train_in_fp16(trial: Trial) -> Outcome:
    """Train in fp16 with a scaled loss."""
    flags = ["--amp", "fp16", "--save-dir", "run", "--log-every", "20", "--steps-per-epoch", "60"]
    trial.launch("singlenode", *trial.ranks(), *TRAINER, *flags).require(r"^.*final loss", 0)
    return judge_losses([float(line["loss"]) for line in read_metrics(trial.folder / "run") if "loss" in line])


def judge_losses(losses: Sequence[float]) -> Outcome:
    """Return the last loss; PartError unless it is well below the first. The trainer refuses one that isn't finite."""
    require(losses[-1] < LEAST_FALL * losses[0], f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    return Outcome(f"loss {losses[-1]:.3f}", f"first {losses[0]:.3f}")


def resume_exactly(trial: Trial) -> Outcome:
    """Train 40 steps at once, and again from the checkpoint of step 20; the weights must be equal to the last bit.

    If they aren't, a third run shows whether the steps alone are exact here: kernels may sum in any order.
    """
    ranks = trial.ranks(1 if trial.on_gpu else 2)
    words = ["singlenode", *ranks, "--env", CUBLAS_IN_ORDER, *TRAINER, *SHORT_RUN, "--parallel", "fsdp"]
    trial.launch(*words, "--save-dir", "whole").require(r"^.*final loss", 0)
    checkpoint = str(trial.folder / "whole" / "checkpoints" / f"step_{HALF}")
    done = trial.launch(*words, "--save-dir", "resumed", "--resume", checkpoint)
    done.require(r"^.*final loss", 0)
    done.find(rf"device  .*, {'nccl' if trial.on_gpu else 'gloo'}$")
    done.find(rf"resume  .*step_{HALF}, step {HALF} of epoch 2")
    different, total = compare_weights(trial, "whole", "resumed")
    if different:
        trial.launch(*words, "--save-dir", "again").require(r"^.*final loss", 0)
        if compare_weights(trial, "whole", "again")[0]:
            raise NotRunError("the same run twice gives different weights here: its kernels sum in any order")
    require(not different, f"{different} of {total} bytes of the weights differ after step {WHOLE}")
    return Outcome("0 bytes differ", f"of {total} in model.pt, FSDP2, steps {HALF} to {WHOLE} trained twice")


def compare_starts(trial: Trial) -> Outcome:
    """Train by torchrun and with `--start warm`, with a restart: the loss must be the same, and no rank start cold."""
    ranks = min(trial.gpus, 2) or 2
    losses = []
    for start in ("torchrun", "warm"):
        words = ["singlenode", "-v", *trial.ranks(ranks), "--start", start, "--restarts", "1", RANKS, "train"]
        done = trial.launch(*words)
        done.require(r"launch: finished in .*, 2 attempts", 0)
        losses.append(done.find(rf"on {trial.device} after \d+ steps, loss (.*)")[1])
    require("import torch themselves" not in done.errors, "the ranks were not forked: " + done.cause)
    require(losses[0] == losses[1], f"loss {losses[1]} instead of {losses[0]}")
    again = done.find(r"(?s)restart 1: .*all ranks started after ([\d.]+) s")[1]
    return Outcome(f"{again} s", f"for the restart; the same loss as under torchrun, {count(ranks, 'rank')}")


def compare_weights(trial: Trial, one: str, other: str) -> tuple[int, int]:
    """Return how many bytes of the weights of two runs differ, and how many there are."""
    paths = [trial.folder / name / "model.pt" for name in (one, other)]
    answer = json.loads(trial.execute([sys.executable, WEIGHTS, *paths]).output)
    return answer["different"], answer["total"]


def read_metrics(folder: Path) -> list[Mapping[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
