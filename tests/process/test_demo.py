"""`launch demo`: hosts that are this machine train together, and are stopped as any others."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from machines.launches import start_launch
from machines.patience import DEADLINE_S
from machines.processes import wait_until


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch: pip install torch")
def test_two_hosts_train_until_they_are_stopped(tmp_path: Path) -> None:
    """Nothing is found wrong with them, although both are this machine."""
    out = tmp_path / "out"
    with out.open("wb") as said:
        process = start_launch("demo", "--nproc", "1", cwd=tmp_path, stdout=said, stderr=said)
        try:
            assert wait_until(lambda: "step 1 loss" in out.read_text()), out.read_text()
            os.kill(process.pid, signal.SIGINT)
            exit_code = process.wait(DEADLINE_S)
        finally:
            process.kill()
    text = out.read_text()
    assert (exit_code, "warning" in text) == (130, False), text
    assert "launch: 2 hosts x 1 process = 2 ranks" in text
    assert "[node1:0] nodes   2: " in text
    assert text.splitlines()[-1].endswith(", 0 processes left on 2 hosts")
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "logs", "outputs"}
