"""`test-distributed` with NCCL between all GPUs; then all GPUs under load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.gpu.part import Outcome, require
from bench.gpu.trial import TEST_DISTRIBUTED, Trial

GIGABYTE = 1e9


def test_all_gpus(trial: Trial) -> Outcome:
    """Test NCCL between all GPUs of this machine or between four ranks on one, or gloo between two processes."""
    if trial.gpus == 1:
        done = trial.launch("singlenode", *trial.side_by_side(4, "-m", "launcher.collectives", "--max-size", "64"))
    else:
        words = [str(trial.gpus or 2), "--gpus-under-load", "0", *([] if trial.on_gpu else ["--cpu"])]
        done = trial.start([*TEST_DISTRIBUTED, *words]).finish()
    summary = done.require(r"(?:all )?\d+ (?:of \d+ )?checks passed.*", 0)[0]
    results = json.loads((trial.run_folder / "files" / "node_0" / "results.json").read_text())
    return judge_results(results, summary, "nccl" if trial.on_gpu else "gloo")


def judge_results(results: Mapping[str, Any], summary: str, backend: str) -> Outcome:
    """Return the bandwidth of the largest all_reduce."""
    require(results["backend"] == backend, f"it used {results['backend']} instead of {backend}")
    speeds = [speed for speed in results["bandwidth"] if speed["collective"] == "all_reduce"]
    largest = max(speeds, key=lambda speed: int(speed["size_bytes"]))
    figure = f"{largest['busbw'] / GIGABYTE:.1f} GB/s"
    return Outcome(figure, f"{summary}; busbw of all_reduce with {largest['size_bytes'] >> 20} MiB")


def test_under_load(trial: Trial) -> Outcome:
    """Let `test-distributed` put all GPUs of this machine under load, or two processes on CPUs."""
    words = [str(trial.gpus or 2), "--max-size", "1", "--json", *([] if trial.on_gpu else ["--cpu"])]
    words += ["--gpus-under-load", "10s" if trial.on_gpu else "2s"]
    done = trial.start([*TEST_DISTRIBUTED, *words]).finish()
    require(done.exit_code in (0, 70), f"exit code {done.exit_code}: {done.cause}")
    return judge_loads(json.loads(done.output.splitlines()[-1]), on_gpu=trial.on_gpu)


def judge_loads(checked: Mapping[str, Any], *, on_gpu: bool) -> Outcome:
    """Return the median speed and what was found, if each GPU was measured and the driver knows it."""
    loads, said = checked["loads"], [finding["text"] for finding in checked["findings"]]
    require(loads, "; ".join(said))
    for load in loads if on_gpu else ():
        unknown = [name for name in ("to_gpu", "from_gpu") if not load[name]]
        unknown += [name for name in ("number", "hottest_c", "clock_mhz", "power_w") if load["sensors"][name] is None]
        require(not unknown, f"rank {load['rank']} doesn't know its {', '.join(unknown)}")
    numbers = [load["sensors"]["number"] for load in loads] if on_gpu else []
    require(len(numbers) == len({*numbers}), f"two ranks call their GPU the same: {numbers}")
    unit, name = (1e12, "TFLOP/s") if on_gpu else (1e9, "GFLOP/s")
    return Outcome(f"{median(load['flops'] for load in loads) / unit:.3g} {name}", "; ".join(said))
