"""The trainer, `distributed.init` and `test-distributed` on GPUs and NCCL, which `gpu_standin` stands in for."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from machines.patience import slowed

from launcher.trainer import __main__ as trainer

TESTS = Path(__file__).parents[1]
ON_GPU = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport gpu_standin\ngpu_standin.enter()\n"
TRAINER = "from launcher.distributed import leave\nfrom launcher.trainer.__main__ import main\nleave(main())\n"
TEST_DISTRIBUTED = TRAINER.replace("trainer", "collectives")
SMALL = [
    *("--layers", "2", "--heads", "4", "--dim", "32", "--context", "16", "--global-batch", "8"),
    *("--steps-per-epoch", "4", "--validation-fraction", "0.001", "--warmup-steps", "0", "--final-lr-fraction", "1"),
]
WAYS = {
    "ddp": (2, []),
    "fsdp": (2, ["--parallel", "fsdp", "--amp", "fp16", "--activation-checkpointing"]),
    "tp": (2, ["--parallel", "tp"]),
}
# What rank 1 does in its sixth step, before it changes the weights.
IN_STEP_6 = """
import os, signal, torch
step, steps = torch.optim.AdamW.step, []
def act(*args, **kwargs):
    steps.append(args)
    if os.environ["RANK"] == "1" and len(steps) == 6:
        {action}
    return step(*args, **kwargs)
torch.optim.AdamW.step = act
"""
STOPS = IN_STEP_6.format(action="os.kill(os.getpid(), signal.SIGTERM)")
PAUSES = IN_STEP_6.format(action="print('pauses', flush=True); signal.pause()")


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """Return the loss of each step, in order; where a run was resumed, those of the steps that it repeated."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sorted({line["step"]: line["loss"] for line in lines if "loss" in line}.items())


@pytest.fixture(scope="module")
def losses_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """Return the losses of the first steps of a single process without a GPU."""
    folder, handler = tmp_path_factory.mktemp("cpu"), signal.getsignal(signal.SIGTERM)
    try:
        assert trainer.main([*SMALL, "--log-every", "1", "--save-dir", str(folder)]) == 0
    finally:
        # It refers to a process group, whose end hangs in a fork: each fork of a later test resets the handlers.
        signal.signal(signal.SIGTERM, handler)
    return read_losses(folder)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_saves_resumes_and_stops(
    starter: Any, tmp_path: Path, losses_on_cpu: list[tuple[int, float]], way: str
) -> None:
    """SIGTERM to one rank in the second epoch, and again until its end; with the losses of one process."""
    size, options = WAYS[way]
    argv = [*SMALL, *options, "--epochs", "2", "--log-every", "1", "--save-dir", "out"]
    ranks = starter.start_ranks(size, lambda rank: ["-c", ON_GPU + STOPS + TRAINER, *argv])
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(143, "")] * size
    assert "SIGTERM: step 7 saved in out/checkpoints/step_7\n" in ranks[0].stdout  # the vote is read a step later
    ranks = starter.start_ranks(size, lambda rank: ["-c", ON_GPU + TRAINER, *argv, "--resume"])
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(0, "")] * size
    assert "resume  out/checkpoints/step_7, step 7 " in ranks[0].stdout
    assert "device  GPU stand-in, nccl\n" in ranks[0].stdout
    losses = read_losses(tmp_path / "out")
    assert [step for step, _ in losses] == list(range(1, 9))
    assert [loss for _, loss in losses[:4]] == pytest.approx([loss for _, loss in losses_on_cpu], rel=1e-3)


def test_sigterm_while_the_gpu_waits_for_a_dead_rank(
    starter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In step 7 nothing can be read from the GPU any more: rank 0 tells which checkpoint there is, and leaves."""
    monkeypatch.chdir(tmp_path)
    assert trainer.main([*SMALL, "--save-dir", "out"]) == 0
    argv = ["-c", ON_GPU + PAUSES + TRAINER, *SMALL, "--save-dir", "out", "--resume"]
    more = ["--epochs", "1000", "--steps-per-epoch", "0", "--log-every", "1000000"]
    ranks = starter.start_ranks(2, lambda rank: [*argv, *more])
    ranks[1].wait_for("pauses")
    ranks[0].process.send_signal(signal.SIGTERM)
    ranks[1].process.kill()
    assert [rank.wait() for rank in ranks] == [143, -signal.SIGKILL], ranks[0].stderr
    line, newest, again = ranks[0].stdout.splitlines()[-3:]
    assert re.fullmatch(r"SIGTERM: step \d+ not saved, because a rank has ended", line)
    assert newest == "newest checkpoint: out/checkpoints/step_4"
    assert again.startswith("to continue: ")


def test_a_rank_without_a_gpu_and_one_with_do_not_wait_for_each_other(starter: Any) -> None:
    code = {0: ON_GPU + TRAINER, 1: TRAINER}
    ranks = starter.start_ranks(2, lambda rank: ["-c", code[rank], *SMALL], {"SLURMD_NODENAME": "gpu2"})
    line = (
        "rank 0 on gpu2 uses nccl, but rank 1 on gpu2 uses gloo; "
        "fix: let torch see a GPU for every rank, or choose gloo for all of them\n"
    )
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(2, line)] * 2


def test_test_distributed_checks_gpus(starter: Any) -> None:
    ranks = starter.start_ranks(2, lambda rank: ["-c", ON_GPU + TEST_DISTRIBUTED, "--only-checks"])
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(0, "")] * 2
    assert re.search(r"\nDDP step +ok\n.*14 checks passed.*nccl", ranks[0].stdout)


# What torch 2.7.0 is told, and how the stand-in itself behaves: as NCCL does.
COLLECTIVES = """
import os, torch, torch.distributed as dist
from launcher import distributed
torch.__version__ = "2.7.0+cu126"
world = distributed.init(timeout_s=float(sys.argv[1]))
print(os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"], dist.group.WORLD.bound_device_id, torch.cuda.current_device())
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(error)
numbers = torch.ones(1, device=world.device)
dist.all_reduce(numbers)
print(numbers.item(), numbers.device, numbers.cpu().device, flush=True)
distributed.barrier()
if world.rank:
    distributed.leave(0)
while True:
    dist.all_reduce(numbers)
    print("queued", flush=True)
    numbers.item()
"""


def test_a_dead_rank_lets_the_others_hang_until_the_watchdog_aborts_them(starter: Any) -> None:
    limit_s = slowed(3)
    ranks = starter.start_ranks(2, lambda rank: ["-c", ON_GPU + COLLECTIVES, str(limit_s)])
    assert [rank.wait() for rank in ranks] == [-signal.SIGABRT, 0], ranks[1].stderr
    refused = "No backend type associated with device type cpu"
    assert ranks[0].stdout.splitlines()[:4] == ["0 cuda:0 0", refused, "2.0 cuda:0 cpu", "queued"]
    assert ranks[1].stdout.splitlines()[0] == "0 cuda:1 1"
    timeout = r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=ALLREDUCE, "
    assert re.search(timeout, ranks[0].stderr)
