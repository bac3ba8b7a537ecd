"""Real torch on SSH hosts, forked by a Python that has imported it."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import Launch
from machines.patience import NEVER_S

if find_spec("torch") is None:  # importing it would take the other tests a second
    pytest.skip("no torch: pip install torch==2.13.0", allow_module_level=True)

ONE_EACH = ("--nproc", "1", "--env", "OMP_NUM_THREADS=1")
LONG_STOP = ("--stop-timeout", f"{NEVER_S:g}")

# Saves on SIGTERM while its loader has two workers; a worker that dies first would make that impossible.
SAVE = """
import os, signal, sys
from torch.utils.data import DataLoader
is_asked_to_stop = False
def stop(number, frame):
    global is_asked_to_stop
    is_asked_to_stop = True
signal.signal(signal.SIGTERM, stop)
rank = os.environ["RANK"]
step = 0
while True:
    for batch in DataLoader(range(1000), batch_size=1, num_workers=2):
        step += 1
        if step == 5:
            print("ready", flush=True)
        if is_asked_to_stop:
            for _, batch in zip(range(3), DataLoader(range(3), num_workers=1)):
                pass  # the validation before a checkpoint: its loader starts workers as well
            open(f"saved.{rank}", "w").write(str(step))
            print("saved at step", step, flush=True)
            sys.exit(0)
"""


def test_a_trainer_with_loader_workers_saves(launch: Launch, python: Path) -> None:
    (launch.folder / "train.py").write_text(SAVE)
    words = ("--hosts", "node2", "--start=plain", "--python", str(python))
    running = launch.start(*ONE_EACH, *LONG_STOP, *words, "train.py")
    running.wait_for("] ready")
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.exit_code == 130
    step = int((launch.folder / "saved.0").read_text())
    assert f"[node2:0] saved at step {step}" in done.lines
    assert "DataLoader worker" not in done.stderr
