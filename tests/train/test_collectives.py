"""The checks of `test-distributed`: right on real ranks, and able to see what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from machines.patience import DEADLINE_S
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from launcher import distributed
from launcher.collectives import __main__ as program
from launcher.collectives import bandwidth, checks
from launcher.collectives.checks import COLLECTIVES
from launcher.collectives.watch import Watch
from launcher.distributed import World

WRONG_RANKS = str(Path(__file__).with_name("wrong_ranks.py"))
OK_LINES = [f"{name:14} fp32 ok   bf16 ok" for name in COLLECTIVES] + [
    f"{name:14} ok" for name in ("barrier", "DDP step")
]


@pytest.fixture
def world() -> Iterator[World]:
    yield distributed.init("gloo", timeout_s=DEADLINE_S)
    distributed.shutdown()


@pytest.fixture
def watch(world: World) -> Watch:
    return Watch(world, timeout_s=DEADLINE_S)


def test_three_ranks_under_torchrun(starter: Any) -> None:
    argv = ["--nproc-per-node", "3", "-m", "launcher.collectives", "--max-size", "1", "--load", "0.2"]
    run = starter.start_torchrun(*argv, env={"LAUNCH_FILES": str(starter.folder)})
    assert run.wait() == 0, run.stderr
    first, *lines = run.stdout.splitlines()
    assert first.startswith("initialized in ") and first.endswith(" s (3 ranks on 1 host)")
    assert lines[:8] == OK_LINES
    assert lines[-2] == "loading all CPUs for 0.2 s"
    rows = [line.split() for line in lines[9:-2]]
    assert [row[:2] for row in rows] == [[name, size] for name in COLLECTIVES for size in ("4", "64", "1024")]
    assert lines[-1] == "all 14 checks passed with 3 ranks on 1 host (gloo, cpu)"
    check_results(json.loads((starter.folder / "results.json").read_text()))


def check_results(results: dict[str, Any]) -> None:
    """What came as JSON is what was printed; busbw is algbw times nccl-tests' factor."""
    assert (results["passed"], results["ranks"], results["backend"], results["device"]) == (True, 3, "gloo", "cpu")
    assert {check["result"] for check in results["checks"]} == {"ok"}
    assert results["pairs"] == []
    assert [measured["rank"] for measured in results["loads"]] == [0, 1, 2]
    factors = dict(zip(COLLECTIVES, (4 / 3, 1, 2 / 3, 2 / 3, 2 / 3, 1), strict=True))
    for row in results["bandwidth"]:
        assert row["algbw"] == pytest.approx(row["size_bytes"] / row["time_s"])
        assert row["busbw"] == pytest.approx(row["algbw"] * factors[row["collective"]])


def test_a_single_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--load", "0.1"]) == 0
    distributed.shutdown()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("(1 rank on 1 host)")
    assert lines == [
        *OK_LINES[:5],
        "send_recv      skipped: it needs two ranks",
        *OK_LINES[6:],
        "loading all CPUs for 0.1 s",
        "12 of 14 checks passed, 2 skipped with 1 rank on 1 host (gloo, cpu)",
    ]


# Where an interpreter's torch finds no numpy, torch's own way to exchange Python values fails.
# At first it prints the modules that the checks import, which would count as their own time.
WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from launcher import distributed
from launcher.collectives.__main__ import main
def join(**options):
    world = init(**options)
    before.update(sys.modules)
    return world
init, distributed.init, before = distributed.init, join, set()
assert main(["--only-checks"]) == 0
print("imported:", sorted(name for name in set(sys.modules) - before if name.startswith("torch._")))
distributed.shutdown()
distributed.init = init
assert main(["--load", "0.1"]) == 0
distributed.shutdown()
from launcher.trainer.train import run
words = ["--data-size", "64", "--epochs", "1", "--save-dir", "saves"]
assert run(words) == 0 and run([*words, "--resume", "--epochs", "2"]) == 0
print(run([*words, "--parallel", "fsdp"]), flush=True)
distributed.leave(0)
"""


def test_numpy_may_be_missing_but_for_shards_and_no_check_waits_for_an_import(starter: Any) -> None:
    run = starter.start(["-c", WITHOUT_NUMPY])
    assert run.wait() == 0, run.stderr
    assert "imported: []\n" in run.stdout
    assert "2 epochs" in run.stdout and run.stdout.endswith("\n2\n")
    fix = "fix: install numpy on all hosts, or use ddp"
    assert run.stderr.endswith(f"parallel fsdp needs numpy, which torch uses to save shards; {fix}\n")


RESUMES_WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from launcher.trainer.train import run
sys.exit(run(["--data-size", "64", "--epochs", "2", "--save-dir", sys.argv[1], "--resume"]))
"""


def test_several_ranks_that_resume_without_numpy_say_so(starter: Any) -> None:
    words = ["-m", "launcher.trainer", "--data-size", "64", "--epochs", "1", "--save-dir", "saves"]
    assert starter.start(words, warm=True).wait() == 0
    ranks = starter.start_ranks(2, lambda _: ["-c", RESUMES_WITHOUT_NUMPY, str(starter.folder / "saves")])
    assert [rank.wait() for rank in ranks] == [2, 2]
    said = ": several ranks resume with torch's help, which needs numpy; fix: install numpy\n"
    assert ranks[0].stderr.endswith(said), ranks[0].stderr


def test_joining_on_gpus_may_take_minutes() -> None:
    """The search for culprits gives a step 10 s."""
    assert [program.limit_joining("cuda", step_s) for step_s in (20, 10, 60)] == [180, 90, 540]
    assert [program.limit_joining("cpu", step_s) for step_s in (20, 10, 60)] == [30, 30, 90]


def test_each_check_sees_a_wrong_result_and_a_rank_that_does_not_come_is_named(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda _: [WRONG_RANKS])
    assert ranks[0].wait() == 1
    assert ranks[0].stderr.endswith("rank 0: all_reduce fp32 did not finish in 1 s; missing: rank 1\n")
    *lines, gradients = ranks[0].stdout.splitlines()
    mismatches = ["rank 0: barrier wrong: expected 2, got 1 (element 0, 1 of 1 differ)"]
    assert [line for line in lines if line.startswith("rank 0:")] == mismatches
    assert [line for line in lines if not line.startswith("rank 0:")] == [
        *(f"{name:14} fp32 WRONG   bf16 WRONG" for name in COLLECTIVES),
        f"{'barrier':14} WRONG",
    ]
    assert re.match(r"gradients differ: expected .*, got .* of 676 differ\)", gradients), gradients
    *lines, _, stalled = ranks[1].stdout.splitlines()
    wrong = [line.split(" wrong: ")[0] for line in lines]
    assert wrong == [f"rank 1: {name} {dtype}" for name in COLLECTIVES for dtype in checks.DTYPES]
    assert stalled == "stalled"


# A network that loses what is broadcast, and a backend that lacks a collective.
LACKING = """
import torch.distributed as dist
from launcher import distributed
from launcher.collectives.__main__ import main
def refuse(*args):
    raise RuntimeError("ProcessGroupGloo does not support alltoall")
dist.all_to_all_single = refuse
dist.broadcast = lambda *args, **options: None
distributed.leave(main(["--max-size", "1", "--load", "0"]))
"""


def test_a_wrong_result_is_an_exit_code_on_all_ranks_and_only_right_ones_are_measured(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda _: ["-c", LACKING])
    assert [rank.wait() for rank in ranks] == [1, 1], ranks[0].stderr
    *lines, last = ranks[0].stdout.splitlines()
    assert last == "10 of 14 checks passed, 2 failed, 2 skipped with 2 ranks on 1 host (gloo, cpu)"
    measured = [line.split()[0] for line in lines[lines.index(bandwidth.HEADING) + 1 :]]
    assert list(dict.fromkeys(measured)) == ["all_reduce", "all_gather", "reduce_scatter", "send_recv"]


def test_any_other_error_is_no_skip(world: World, watch: Watch) -> None:
    def failing(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        checks.run_checks(world, watch, {"all_to_all": failing})


def test_a_nan_is_wrong() -> None:
    got = torch.tensor([float("nan")])
    assert checks.describe_mismatch(got, torch.zeros(1)) == ("expected 0, got nan (element 0, 1 of 1 differ)")


@pytest.mark.parametrize("size", [1, 2, 9, 40])
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_the_expected_sums_hold_in_any_world_and_miss_no_rank(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ELEMENTS", 300)
    sent, expected = zip(*(checks.choose_values(make_world(rank, size), name) for rank in range(size)), strict=True)
    assert all(part.any() for part in sent)
    total = reduce(torch.add, [part.bfloat16() for part in sent]).long()  # rounded at each addition
    assert torch.equal(total, torch.cat(expected) if name == "reduce_scatter" else expected[0])
    assert name == "reduce_scatter" or all(torch.equal(expected[0], each) for each in expected)


def make_world(rank: int, size: int) -> World:
    return World(rank, size, rank, size, torch.device("cpu"), "gloo", "torchrun")


def test_what_goes_from_each_rank_to_each_rank_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in bf16, which holds whole numbers up to 256, with more ranks and pairs of ranks than that."""
    monkeypatch.setattr(checks, "ELEMENTS", 8)
    worlds = [make_world(rank, 24) for rank in range(24)]
    sent, received = zip(*(checks.choose_values(world, "all_to_all") for world in worlds), strict=True)
    parts = torch.stack(sent).to(torch.bfloat16).view(24, 24, 8)
    assert torch.equal(parts.transpose(0, 1), torch.stack(received).view(24, 24, 8))
    assert len(parts.flatten(0, 1).float().unique(dim=0)) == 24 * 24
    _, gathered = checks.choose_values(make_world(0, 300), "all_gather")
    assert len(gathered.view(300, 8).unique(dim=0)) == 300
    assert all(
        torch.equal(checks.choose_values(make_world(rank, 300), "all_gather")[0], gathered.view(300, 8)[rank])
        for rank in (0, 1, 299)
    )


def test_gradients_are_compared_in_fp32_where_an_image_turns_on_tf32(world: World) -> None:
    """Torch begins with `high`, which allows TF32, if TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 is set."""
    seen: list[str] = []

    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        seen.append(torch.get_float32_matmul_precision())
        return DistributedDataParallel(model)

    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(*checks.check_ddp_step(world, torch.float32, wrap))
        assert seen == ["highest"]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_sizes_grow_to_the_largest() -> None:
    kib = bandwidth.KIB
    assert bandwidth.list_sizes(4 * bandwidth.MIB) == [4 * kib, 64 * kib, 1024 * kib, 4096 * kib]
    assert bandwidth.list_sizes(4 * kib) == [4 * kib]
    assert bandwidth.list_sizes(bandwidth.LARGEST_BYTES["cuda"])[2:] == [2**20, 2**24, 2**28, 2**30]


def test_a_size_that_would_take_too_long_is_not_measured(
    world: World, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 1 MiB the time says little about larger sizes."""
    monkeypatch.setattr(bandwidth, "TOO_SLOW_S", 0.0)
    rows = [*bandwidth.measure_bandwidth(world, watch, ["all_reduce", "broadcast"])]
    assert [row.size_bytes for row in rows] == [2**12, 2**16, 2**20] * 2
