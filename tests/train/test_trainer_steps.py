"""What the trainer computes, against a loop of its own that knows nothing of it (plain_loop.py), step by step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plain_loop
import pytest
import torch

STEPS, BATCH = 6, 8
SHAPE: dict[str, Any] = {"context": 16, "layers": 2, "heads": 4, "dim": 32, "warmup_steps": 2, "lr": 1e-2}


@dataclass(frozen=True)
class Row:
    """One training: what it is about, and how the ranks share it."""

    options: dict[str, Any] = field(default_factory=dict)  # of both
    ranks: int = 1
    flags: tuple[str, ...] = ()  # of the trainer alone
    tolerance: float = 1e-5


TWO_PASSES = ("--accumulate", "2")
ROWS = {
    "clipped": Row({"clip_norm": 0.3, "weight_decay": 3.0, "seed": 5, "validation_fraction": 0.3}),
    "schedule": Row({"clip_norm": 0.0, "lr": 3e-2, "warmup_steps": 3, "final_lr_fraction": 0.3}),
    "no-warmup": Row({"warmup_steps": 0, "final_lr_fraction": 1.0}, flags=("--activation-checkpointing",)),
    "all-warmup": Row({"warmup_steps": 2 * STEPS}, flags=TWO_PASSES),
    "bf16": Row({"amp": "bf16"}),
    "compiled": Row(flags=("--compile",)),
    "ddp": Row(ranks=2),
    "ddp-fp16": Row({"amp": "fp16"}, 2, TWO_PASSES, tolerance=1e-3),
    "fsdp-passes": Row({"clip_norm": 0.3}, 2, ("--parallel", "fsdp", *TWO_PASSES)),
    "fsdp-bf16": Row({"amp": "bf16"}, 2, ("--parallel", "fsdp"), tolerance=3e-3),
    "fsdp-fp16": Row({"amp": "fp16"}, 2, ("--parallel", "fsdp"), tolerance=3e-3),
    "fsdp-compiled": Row({}, 2, ("--parallel", "fsdp", "--compile")),
    "hsdp": Row({}, 4, ("--hsdp", "2", *TWO_PASSES)),
    "tp": Row({"weight_decay": 3.0, "clip_norm": 0.3}, 2, ("--parallel", "tp")),
    "fsdp+tp": Row({"clip_norm": 0.3}, 4, ("--tensor-parallel", "2")),
}  # fmt: skip


def as_flags(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def read_steps(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_every_way_learns_what_a_plain_loop_learns(starter: Any, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(" ".join(f"{number} and {number * number};" for number in range(300))[: 130 * 16 + 1])
    common = ["--data", "text", "--epochs", "1", "--steps-per-epoch", str(STEPS), "--log-every", "1"]
    common += ["--global-batch", str(BATCH)]
    runs = {
        name: (row.ranks, ".", [*common, *as_flags({**SHAPE, **row.options}), *row.flags]) for name, row in ROWS.items()
    }
    ranks = starter.start_turns(4, runs)
    for name, row in ROWS.items():
        ranks[0].wait_for(f"run {name} is over")
        losses, norms, weights = plain_loop.train(text, STEPS, BATCH, **{**SHAPE, **row.options})
        steps = read_steps(tmp_path / name)
        assert [line["loss"] for line in steps] == pytest.approx(losses, rel=row.tolerance), name
        assert [line["gradient_norm"] for line in steps] == pytest.approx(norms, rel=30 * row.tolerance), name
        progress = json.loads((tmp_path / name / f"checkpoints/step_{STEPS}/progress.json").read_text())
        assert bool(progress["scaler"]) is (row.options.get("amp") == "fp16"), "with fp16 alone the loss is scaled"
        saved = torch.load(tmp_path / name / "model.pt", weights_only=True)["model"]
        for key, weight in weights.items():
            far = (saved[key] - weight).abs().max().item() / weight.abs().max().item()
            assert far < 300 * row.tolerance or key.endswith("attention.key.bias"), (name, key, far)  # rounding alone
    assert math.isfinite(losses[-1]) and losses[-1] < losses[0] - 1
    for rank in ranks:
        assert (rank.wait(), rank.stderr) == (0, "")
