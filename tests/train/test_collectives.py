"""The checks of `test-distributed`: right on real ranks, and able to see what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from launcher import collectives, distributed
from launcher.distributed import World

ALL_OK = [
    "all_reduce fp32 ok",
    "all_reduce bf16 ok",
    "broadcast fp32 ok",
    "broadcast bf16 ok",
    "all_gather fp32 ok",
    "all_gather bf16 ok",
]


@pytest.fixture
def world() -> Iterator[World]:
    yield distributed.init("gloo", timeout_s=5)
    distributed.shutdown()


def test_three_ranks_under_torchrun(starter: Any) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    run = starter.start([*torchrun, "-m", "launcher.collectives"])
    assert run.wait() == 0, run.stderr
    assert run.stdout.splitlines() == [*ALL_OK, "all 6 checks passed on 3 ranks (gloo, cpu)"]


def test_a_single_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert collectives.main() == 0
    assert capsys.readouterr().out.splitlines() == [*ALL_OK, "all 6 checks passed on 1 rank (gloo, cpu)"]


def test_a_half_set_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert collectives.main() == 2
    assert capsys.readouterr().err.startswith("MASTER_PORT is set but RANK, WORLD_SIZE, ")


def test_a_wrong_result_is_named_and_fails(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong_in_bf16(world: World, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        expected = torch.tensor([1.0, 6.0, 8.0], dtype=dtype)
        got = expected if dtype is torch.float32 else torch.tensor([1.0, 3.0, 4.0], dtype=dtype)
        return got, expected

    assert not collectives.run_checks(world, {"all_reduce": wrong_in_bf16})
    assert capsys.readouterr().out == (
        "all_reduce fp32 ok\n"
        "rank 0: all_reduce bf16 wrong: expected 6, got 3 (element 1, 2 of 3 differ)\n"
        "1 of 2 checks failed on 1 rank (gloo, cpu)\n"
    )


def test_a_nan_is_wrong() -> None:
    got = torch.tensor([float("nan")])
    assert collectives.describe_mismatch(got, torch.zeros(1)) == ("expected 0, got nan (element 0, 1 of 1 differ)")


@pytest.mark.parametrize("world_size", [1, 2, 7, 8, 9, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_expected_sum_holds_in_any_world_and_misses_no_rank(
    world_size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda values: None)
    total = torch.zeros(collectives.ELEMENTS, dtype=dtype)
    for rank in range(world_size):
        world = World(rank, world_size, rank, world_size, torch.device("cpu"), "gloo", "torchrun")
        part, expected = collectives.check_all_reduce(world, dtype)
        assert part.any()
        total += part
    assert torch.equal(total, expected)
