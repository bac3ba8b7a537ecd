"""What the trainer computes, against a loop of its own that knows nothing of it (plain_loop.py), step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plain_loop
import pytest
import torch

from launcher.trainer import generate

EPOCHS, EPOCH_STEPS, BATCH = 2, 3, 8
SHAPE: dict[str, Any] = {"context": 16, "layers": 2, "heads": 4, "dim": 32, "warmup_steps": 2, "lr": 1e-2}
APART = "node{rank}"  # a file system of its own for each rank


@dataclass(frozen=True)
class Row:
    """One training: what it is about, and how the ranks share it."""

    options: dict[str, Any] = field(default_factory=dict)  # of both
    ranks: int = 1
    flags: tuple[str, ...] = ()  # of the trainer alone
    tolerance: float = 1e-5
    folder: str = "."
    resumes: str = ""  # the row from whose first epoch it goes on, with the same options


TWO_PASSES, FSDP, TP = ("--accumulate", "2"), ("--parallel", "fsdp"), ("--parallel", "tp")
CLIPPED = {"weight_decay": 3.0, "clip_norm": 0.3}
ROWS = {
    "clipped": Row({**CLIPPED, "seed": 5, "validation_fraction": 0.3}),
    "schedule": Row({"clip_norm": 0.0, "lr": 3e-2, "warmup_steps": 3, "final_lr_fraction": 0.3}),
    "no-warmup": Row({"warmup_steps": 0, "final_lr_fraction": 1.0}, flags=("--activation-checkpointing",)),
    "all-warmup": Row({"warmup_steps": 12}, flags=TWO_PASSES),
    "bf16": Row({"amp": "bf16"}),
    "compiled": Row(flags=("--compile",)),
    "fsdp-compiled": Row(flags=(*FSDP, "--compile")),  # a single rank, since the imports take seconds on each
    "ddp": Row(CLIPPED, 2, folder=APART),
    "ddp-fp16": Row({"amp": "fp16"}, 2, TWO_PASSES, tolerance=1e-3),
    "fsdp-passes": Row(CLIPPED, 2, (*FSDP, *TWO_PASSES, "--activation-checkpointing"), folder=APART),
    "fsdp-fp16": Row({"amp": "fp16"}, 2, FSDP, tolerance=3e-3),
    "hsdp": Row({}, 4, ("--hsdp", "2", *TWO_PASSES)),
    "tp": Row(CLIPPED, 2, TP),
    "fsdp+tp": Row(CLIPPED, 4, ("--tensor-parallel", "2")),
    # From the parts that all ranks wrote, and from the whole that rank 0 wrote, which it hands on.
    "one-from-hsdp": Row({}, resumes="hsdp"),
    "fsdp-from-fsdp+tp": Row(CLIPPED, 2, FSDP, resumes="fsdp+tp"),
    "tp-from-fsdp": Row(CLIPPED, 2, TP, folder=APART, resumes="fsdp-passes"),
}

# With dropout, so that random numbers matter, and resumed in the middle of an epoch.
DROP = ("--dropout", "0.3", "--save-every", "1", "--keep", "9")
DROPPING = {
    "drop-one": (1, DROP),
    "drop-ddp": (2, DROP),
    "drop-ddp-on": (2, (*DROP, "--resume", "drop-ddp/checkpoints/step_1")),
    "drop-tp": (2, (*DROP, *TP)),
    "drop-tp-on": (2, (*DROP, *TP, "--resume", "drop-tp/checkpoints/step_1")),
    "drop-one-on": (1, (*DROP, "--resume", "drop-tp/checkpoints/step_5")),
}


def as_flags(row: Row) -> list[str]:
    options = {**SHAPE, **row.options}
    resumes = ("--resume", f"{row.resumes}/checkpoints/step_{EPOCH_STEPS}") if row.resumes else ()
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*words, *row.flags, *resumes]


def read_metrics(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)["model"]
    return weights


def check_row(name: str, row: Row, folder: Path, text: Path) -> None:
    """Compare a run, or what it did after it resumed, with the plain loop."""
    learned = plain_loop.train(text, EPOCHS, EPOCH_STEPS, BATCH, **{**SHAPE, **row.options})
    begin = int(bool(row.resumes))  # the epoch
    for metric, expected, tolerance in (
        ("loss", learned.losses[begin * EPOCH_STEPS :], row.tolerance),
        ("gradient_norm", learned.norms[begin * EPOCH_STEPS :], 30 * row.tolerance),
        ("validation_loss", learned.validation_losses[begin:], 3 * row.tolerance),
    ):
        assert read_metrics(folder, metric) == pytest.approx(expected, rel=tolerance), (name, metric)
    assert learned.losses[-1] < learned.losses[0] - 1
    progress = json.loads((folder / f"checkpoints/step_{EPOCHS * EPOCH_STEPS}/progress.json").read_text())
    assert bool(progress["scaler"]) is (row.options.get("amp") == "fp16"), "with fp16 alone the loss is scaled"
    saved = read_weights(folder)
    assert saved.keys() == learned.weights.keys()
    for key, weight in learned.weights.items():
        far = (saved[key] - weight).abs().max().item() / weight.abs().max().item()
        assert far < 300 * row.tolerance or key.endswith("attention.key.bias"), (name, key, far)  # rounding alone


def check_dropout(folder: Path) -> None:
    """A resumed run is bit for bit the one that wasn't stopped, and each rank drops its own."""
    losses = {name: read_metrics(folder / name, "loss") for name in DROPPING}
    for name in ("drop-ddp", "drop-tp"):
        assert losses[f"{name}-on"] == losses[name][1:], name
        resumed, unbroken = read_weights(folder / f"{name}-on"), read_weights(folder / name)
        assert [key for key, weight in unbroken.items() if not torch.equal(resumed[key], weight)] == [], name
        assert len(list((folder / name / "checkpoints").iterdir())) == EPOCHS * EPOCH_STEPS  # each of them whole
    assert len({str(losses[name]) for name in ("drop-one", "drop-ddp", "drop-tp")}) == 3


def test_every_way_learns_what_a_plain_loop_learns_and_goes_on_from_others(
    starter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """130 samples, of which 13 are to validate: not the same number for each rank."""
    text = " ".join(f"{number} and {number * number};" for number in range(300))[: 130 * 16 + 1]
    for rank in range(2):
        (tmp_path / f"node{rank}").mkdir()
    for folder in (tmp_path, tmp_path / "node0"):  # the other ranks get it from rank 0
        (folder / "text").write_text(text)
    common = ["--data", "text", "--epochs", str(EPOCHS), "--steps-per-epoch", str(EPOCH_STEPS), "--log-every", "1"]
    common += ["--global-batch", str(BATCH)]
    runs = {name: (row.ranks, row.folder, [*common, *as_flags(row)]) for name, row in ROWS.items()}
    runs |= {name: (size, ".", [*common, *as_flags(Row()), *words]) for name, (size, words) in DROPPING.items()}
    ranks = starter.start_turns(4, runs)
    for name, row in ROWS.items():  # each run has its own deadline
        ranks[0].wait_for(f"run {name} is over")
        check_row(name, row, tmp_path / row.folder.format(rank=0) / name, tmp_path / "text")
    for rank in ranks:  # one by one: where rank 0 fails, the others wait for it
        assert (rank.wait(), rank.stderr) == (0, "")
    check_dropout(tmp_path)
    said = "changed random numbers: new ones, since 2 ranks saved theirs"
    assert f"resume  drop-tp/checkpoints/step_5, step 5 of epoch 2\n{said}" in ranks[0].stdout
    assert ranks[0].stdout.count("changed") == 1
    # Who has no file system in common with rank 0 writes nothing; who has, writes its part.
    assert [path.name for path in (tmp_path / "node1").iterdir()] == []
    assert (tmp_path / "node0/fsdp-passes/checkpoints/step_6/state.pt").exists()
    assert len(list((tmp_path / "fsdp+tp/checkpoints/step_6").glob("*.distcp"))) == 4
    # The parts are read as the whole is.
    written = set()
    for model in ("model.pt", "checkpoints/step_6"):
        argv = ["--model", str(tmp_path / "fsdp+tp" / model), "--prompt", "1 and", "--temperature", "0"]
        assert generate.main([*argv, "--length", "20"]) == 0
        written.add(capsys.readouterr().out)
    assert len(written) == 1
