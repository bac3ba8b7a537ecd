"""`test-distributed` with NCCL: on one GPU, and between all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.gpu.part import Outcome, require
from bench.gpu.trial import TEST_DISTRIBUTED, Trial
from launcher.wording import count

GIGABYTE = 1e9


def test_one_gpu(trial: Trial) -> Outcome:
    """Test NCCL on one GPU, or gloo between two processes."""
    return run_test(trial, 1) if trial.on_gpu else run_test(trial, 2)


def test_all_gpus(trial: Trial) -> Outcome:
    """Test NCCL between all GPUs of this machine."""
    return run_test(trial, trial.gpus)


def run_test(trial: Trial, ranks: int) -> Outcome:
    """Run `test-distributed`, and return how many checks passed and the bandwidth of the largest all_reduce."""
    done = trial.start([*TEST_DISTRIBUTED, str(ranks), *([] if trial.on_gpu else ["--cpu"])]).finish()
    summary = done.require(r"(?:all )?\d+ (?:of \d+ )?checks passed.*", 0)[0]
    results = json.loads((trial.run_folder / "files" / "node_0" / "results.json").read_text())
    return judge_results(results, summary, "nccl" if trial.on_gpu else "gloo")


def judge_results(results: Mapping[str, Any], summary: str, backend: str) -> Outcome:
    """Return the bandwidth of the largest all_reduce, or how many checks passed if a lone rank measured none."""
    require(results["backend"] == backend, f"it used {results['backend']} instead of {backend}")
    speeds = [speed for speed in results["bandwidth"] if speed["collective"] == "all_reduce"]
    if not speeds:
        passed = sum(check["result"] == "ok" for check in results["checks"])
        return Outcome(count(passed, "check"), summary)
    largest = max(speeds, key=lambda speed: int(speed["size_bytes"]))
    figure = f"{largest['busbw'] / GIGABYTE:.1f} GB/s"
    return Outcome(figure, f"{summary}; busbw of all_reduce with {largest['size_bytes'] >> 20} MiB")
