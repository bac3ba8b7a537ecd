"""The trainer on a stand-in for GPUs, where a group is bound to a device and splits as NCCL does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STANDIN = str(Path(__file__).parents[1] / "gpu_standin" / "run.py")
SMALL = ["--layers", "1", "--dim", "32", "--context", "16", "--global-batch", "8", "--steps-per-epoch", "4"]


def test_ranks_with_a_bound_device_train_and_save(starter: Any, tmp_path: Path) -> None:
    ranks = starter.start_ranks(2, lambda rank: [STANDIN, "launcher.trainer", *SMALL, "--save-dir", "out"])
    assert [(rank.wait(), rank.stderr) for rank in ranks] == [(0, ""), (0, "")]
    assert (tmp_path / "out" / "model.pt").exists()
