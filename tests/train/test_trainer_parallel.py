"""Ways to share the work: how ranks are used and what is refused; test_trainer_steps.py has what they compute."""

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


def test_what_a_rank_keeps_and_in_which_types_it_computes(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda rank: [str(HERE / "sharding_ranks.py")])
    for rank in ranks:
        assert (rank.wait(), rank.stderr) == (0, "")
    seen = json.loads(ranks[0].stdout)

    # Half of a 12-layer model, and little more than a block of it; with gradients and AdamW four times that.
    memory = seen["memory"]
    shard, block = memory["whole"] / 2, memory["block"]
    assert shard < memory["built"] < shard + 3 * block
    assert 4 * shard < memory["stepped"] < 4 * shard + 10 * block
    summed = dict.fromkeys(("blocks.0", "blocks.1", "blocks.0.mlp_norm", "norm", "gradients"), "torch.float32")
    products = dict.fromkeys(("blocks.0.attention", "blocks.0.mlp", "head"), "torch.bfloat16")
    assert seen["types"] == [{**summed, **products}] * 2
