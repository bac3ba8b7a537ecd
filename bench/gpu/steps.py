"""The trainer on a GPU: resuming to the last bit, and warm starts that compute the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gpu.part import NotRunError, Outcome, require
from bench.gpu.trial import RANKS, Trial
from launcher.wording import count

if TYPE_CHECKING:
    import torch

TRAINER = ("-m", "launcher.trainer")
SHORT_RUN = ["--epochs", "2", "--steps-per-epoch", "20", "--log-every", "20", "--keep", "4", "--dropout", "0.1"]
HALF, WHOLE = 20, 40  # steps
# Without it, cuBLAS may use its workspaces in any order (docs.nvidia.com/cuda/cublas, results reproducibility).
CUBLAS_IN_ORDER = "CUBLAS_WORKSPACE_CONFIG=:4096:8"


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
    ours, theirs = (_read_weights(trial.folder / name / "model.pt") for name in (one, other))
    require(ours.keys() == theirs.keys(), f"the names of weights differ: {ours.keys() ^ theirs.keys()}")
    different = sum(int((ours[name] != theirs[name]).sum()) for name in ours)
    return different, sum(len(weight) for weight in ours.values())


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the bytes of each weight by its name: as numbers, 0 and -0 would be equal."""
    import torch  # as late as this: a machine whose torch can't be imported gets one line

    weights = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return {name: weight.contiguous().flatten().view(torch.uint8) for name, weight in weights.items()}


def read_metrics(folder: Path) -> list[Mapping[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
