"""Ways to share the work: what is refused, and that all of them learn the same, also when they take turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.distributed import World
from launcher.trainer.config import ConfigError, read_config
from launcher.trainer.parallel import plan_dims

HERE = Path(__file__).parent
APART = "node{rank}"  # a file system of its own for each rank
STEPS = 4
DROP = ["--dropout", "0.3", "--save-every", "1", "--keep", "9"]
OPTIONS = [
    *("--data", "text", "--context", "16", "--layers", "2", "--heads", "4", "--dim", "32", "--global-batch", "8"),
    *("--epochs", "2", "--steps-per-epoch", "2", "--log-every", "1"),
]


def world_of(world_size: int, rank: int = 0) -> World:
    return World(rank, world_size, rank, world_size, torch.device("cpu"), "gloo", "torchrun")


def dims_of(world_size: int, *argv: str, rank: int = 0) -> tuple[str, int, int, int, int]:
    dims = plan_dims(read_config(list(argv)), world_of(world_size, rank))
    return dims.kind, dims.dp_size, dims.dp_rank, dims.tp, dims.batch_size


@pytest.mark.parametrize(
    ("world_size", "argv", "dims"),
    [
        (1, [], ("single", 1, 0, 1, 16)),
        (1, ["--parallel", "fsdp"], ("fsdp", 1, 0, 1, 16)),
        (4, [], ("ddp", 4, 3, 1, 16)),
        (4, ["--global-batch", "32", "--accumulate", "2"], ("ddp", 4, 3, 1, 4)),
        (4, ["--parallel", "tp", "--heads", "4", "--global-batch", "32"], ("tp", 1, 0, 4, 32)),
        (4, ["--tensor-parallel", "2", "--global-batch", "32"], ("fsdp+tp", 2, 1, 2, 16)),
        (4, ["--hsdp", "2", "--global-batch", "32"], ("fsdp", 4, 3, 1, 8)),
        (4, ["--hsdp", "1", "--tensor-parallel", "4", "--heads", "4"], ("fsdp+tp", 1, 0, 4, 16)),
    ],
)
def test_how_ranks_are_used(world_size: int, argv: list[str], dims: tuple[object, ...]) -> None:
    assert dims_of(world_size, *argv, rank=world_size - 1) == dims


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tensor-parallel", "3"], "4 ranks can't be divided by hsdp 1 x tensor_parallel 3"),
        (["--tensor-parallel", "4", "--parallel", "tp"], "heads must be a multiple of tensor_parallel, got 2 and 4"),
        (
            ["--parallel", "tp", "--heads", "4", "--context", "7"],
            "context must be a multiple of tensor_parallel, got 7 and 4",
        ),
        (
            ["--parallel", "tp", "--tensor-parallel", "2"],
            "parallel tp on 4 ranks doesn't go with tensor_parallel 2; fix: use fsdp+tp with 2 or more",
        ),
        (["--hsdp", "2", "--parallel", "ddp"], "parallel ddp has no shards to replicate, got hsdp 2; fix: use fsdp"),
        (
            ["--parallel", "fsdp", "--evaluate-on", "main"],
            "evaluate_on main needs the whole model, but parallel fsdp splits it",
        ),
        (["--global-batch", "12", "--accumulate", "2"], "a global batch of 12 can't be split among 4 ranks x 2 passes"),
    ],
)
def test_ranks_that_can_not_be_used_so_are_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dims_of(4, *argv)
    assert str(caught.value) == message


def test_shards_need_a_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    assert dims_of(4)[0] == "ddp"
    with pytest.raises(ConfigError) as caught:
        dims_of(4, "--parallel", "fsdp")
    assert str(caught.value) == "parallel fsdp needs torch 2.6 or newer, this is 2.5.1+cu121"


def test_replicas_and_shards() -> None:
    dims = plan_dims(read_config(["--hsdp", "2"]), world_of(4))
    assert (dims.kind, dims.replicate, dims.shard) == ("fsdp", 2, 2)


def read_losses(folder: Path) -> list[tuple[int, str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], key, line[key]) for line in lines for key in ("loss", "validation_loss") if key in line]


def check_dropout(folders: dict[str, Path]) -> None:
    """A resumed run is bit for bit the one that wasn't stopped."""
    losses = {name: read_losses(folder) for name, folder in folders.items()}
    weights = {name: torch.load(folder / "model.pt", weights_only=True)["model"] for name, folder in folders.items()}
    for name in ("drop-ddp", "drop-fsdp", "drop-tp"):
        assert losses[f"{name}-on"] == [line for line in losses[name] if line[0] > 1], name
        for key, weight in weights[name].items():
            assert torch.equal(weights[f"{name}-on"][key], weight), (name, key)
        assert len(list((folders[name] / "checkpoints").iterdir())) == STEPS  # each of them whole
    assert len({str(losses[name]) for name in ("drop-one", "drop-ddp", "drop-tp")}) == 3  # each rank drops its own


def resume(name: str) -> list[str]:
    return ["--resume", f"{name}/checkpoints/step_2"]


def test_all_ways_learn_the_same_and_go_on_from_each_other(starter: Any, tmp_path: Path) -> None:
    """Each run is of the same global batches, so its losses are those of one process, but for rounding."""
    both = ["--parallel", "fsdp+tp", "--tensor-parallel", "2"]
    replicas = ["--parallel", "fsdp", "--hsdp", "2"]
    less_memory = ["--accumulate", "2", "--activation-checkpointing"]
    runs = {
        "one": (1, ".", []),
        "ddp": (2, APART, ["--accumulate", "2"]),
        "fsdp": (2, APART, ["--parallel", "fsdp", *less_memory]),
        "tp": (2, ".", ["--parallel", "tp", "--activation-checkpointing"]),
        "both": (4, ".", [*both, "--accumulate", "2"]),
        "hsdp": (4, ".", [*replicas, "--accumulate", "2"]),
        # From the parts that all ranks wrote, and from the whole that rank 0 wrote, which it hands on.
        "one-from-both": (1, ".", resume("both")),
        "ddp-from-hsdp": (2, ".", resume("hsdp")),
        "hsdp-from-fsdp": (4, APART, [*resume("fsdp"), *replicas]),
        "both-from-ddp": (4, APART, [*resume("ddp"), *both]),
        # With dropout, so that random numbers matter, and resumed in the middle of an epoch.
        "drop-one": (1, ".", DROP),
        "drop-tp": (2, ".", [*DROP, "--parallel", "tp"]),
        "drop-tp-on": (2, ".", [*DROP, "--parallel", "tp", "--resume", "drop-tp/checkpoints/step_1"]),
        "drop-ddp": (2, ".", DROP),
        "drop-ddp-on": (2, ".", [*DROP, "--resume", "drop-ddp/checkpoints/step_1"]),
        "drop-fsdp": (2, ".", [*DROP, "--parallel", "fsdp"]),
        "drop-fsdp-on": (2, ".", [*DROP, "--parallel", "fsdp", "--resume", "drop-fsdp/checkpoints/step_1"]),
        "drop-one-on": (1, ".", [*DROP, "--resume", "drop-fsdp/checkpoints/step_3"]),
    }
    # 111 samples, 11 of them to validate: not the same number for each rank.
    text = " ".join(f"{number} and {number * number};" for number in range(300))[: 111 * 16 + 1]
    for rank in range(4):
        (tmp_path / f"node{rank}").mkdir()
    for folder in (tmp_path, tmp_path / "node0"):  # the other ranks get it from rank 0
        (folder / "text").write_text(text)
    ranks = starter.start_turns(4, {name: (n, folder, [*OPTIONS, *argv]) for name, (n, folder, argv) in runs.items()})
    for name in list(runs)[:-1]:  # each run has its own deadline
        ranks[0].wait_for(f"run {name} is over")
    for rank in ranks:  # one by one: where rank 0 fails, the others wait for it
        assert (rank.wait(), rank.stderr) == (0, "")

    said = "changed random numbers: new ones, since 2 ranks saved theirs"
    assert f"resume  drop-fsdp/checkpoints/step_3, step 3 of epoch 2\n{said}" in ranks[0].stdout
    assert ranks[0].stdout.count("changed") == 1
    folders = {name: tmp_path / folder.format(rank=0) / name for name, (_, folder, _) in runs.items()}
    expected = read_losses(folders["one"])
    assert [step for step, key, _ in expected if key == "loss"] == list(range(1, STEPS + 1))
    weights = torch.load(folders["one"] / "model.pt", weights_only=True)["model"]
    check_dropout({name: folders.pop(name) for name in list(folders) if name.startswith("drop-")})
    for name, folder in folders.items():
        part = expected if "from" not in name else [line for line in expected if line[0] > 2]
        losses = read_losses(folder)
        assert [line[:2] for line in losses] == [line[:2] for line in part], name
        assert [line[2] for line in losses] == pytest.approx([line[2] for line in part], rel=1e-5), name
        saved = torch.load(folder / "model.pt", weights_only=True)["model"]
        assert saved.keys() == weights.keys()
        for key, weight in weights.items():
            torch.testing.assert_close(saved[key], weight, rtol=1e-3, atol=1e-4)
    # Who has no file system in common with rank 0 writes nothing; who has, writes its part.
    assert [path.name for path in (tmp_path / "node1").iterdir()] == []
    assert len(list((folders["both"] / "checkpoints" / "step_4").glob("*.distcp"))) == 4
    assert (folders["fsdp"] / "checkpoints" / "step_4" / "state.pt").exists()


def test_what_a_rank_keeps_and_in_which_types_it_computes(starter: Any) -> None:
    ranks = starter.start_ranks(4, lambda rank: [str(HERE / "sharding_ranks.py")])
    for rank in ranks:
        assert (rank.wait(), rank.stderr) == (0, "")
    seen = json.loads(ranks[0].stdout)

    # A quarter of a 12-layer model, and little more than a block of it; with gradients and AdamW four times that.
    memory = seen["memory"]
    shard, block = memory["whole"] / 4, memory["block"]
    assert shard < memory["built"] < shard + 3 * block
    assert 4 * shard < memory["stepped"] < 4 * shard + 10 * block
    summed = dict.fromkeys(("blocks.0", "blocks.1", "blocks.0.mlp_norm", "norm", "gradients"), "torch.float32")
    products = dict.fromkeys(("blocks.0.attention", "blocks.0.mlp", "head"), "torch.bfloat16")
    assert seen["types"] == [{**summed, **products}] * 2
