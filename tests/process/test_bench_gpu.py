"""`python -m bench gpu` on a machine without a GPU: what its parts start, how long, and what stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from machines.processes import is_alive
from node_process import wait_until

from bench.gpu.hardware import Hardware
from bench.gpu.part import PartError
from bench.gpu.trial import Trial

ROOT = Path(__file__).parents[2]
CPUS = Hardware([], "2.13.0+cpu", None, None, None, 2)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.gpu.trial.STOP_S", 0.2)
    monkeypatch.setattr("bench.gpu.trial.SETTLE_S", 0.2)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, CPUS, 0, time.monotonic() + DEADLINE_S)


def test_the_table_of_some_parts() -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-m", "bench", "gpu", "facts", "freed"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    head, _, _, _, freed, facts, _, counts = done.stdout.splitlines()
    assert head.startswith("no GPU, ")
    assert facts == "| facts | on CPUs | 0 GPUs | neither launch nor torch finds a GPU |"
    assert freed == "| freed | not run | - | needs a GPU |"
    assert counts.startswith("1 not run, 1 on CPUs; ")


def test_a_part_that_takes_too_long_ends_with_all_that_it_started(trial: Trial) -> None:
    running = trial.start(["sh", "-c", "trap '' TERM; sleep 600 & echo child $!; wait"])
    child = int(running.wait_for(r"child (\d+)")[0][1])
    late = Trial(trial.folder, CPUS, 0, time.monotonic(), [running])
    running.deadline = late.deadline
    for wait in (running.finish, lambda: running.wait_for("never")):
        with pytest.raises(PartError, match="out of time"):
            wait()
    assert is_alive(child)
    assert late.close() == []
    assert running.process.returncode == -signal.SIGKILL
    wait_until(lambda: not is_alive(child))
