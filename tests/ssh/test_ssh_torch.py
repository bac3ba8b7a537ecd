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

# One rank of all raises after the first all-reduce; the others meet its closed connections.
RAISE = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(1)
dist.all_reduce(ones)
print("sum", int(ones), "of", dist.get_world_size(), flush=True)
if rank == 1:
    dist.destroy_process_group()  # at exit its thread may abort the process, once in some hundred times
    raise ValueError("the optimizer met a NaN")
dist.all_reduce(ones)
"""

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


def test_a_rank_raises(launch: Launch, python: Path) -> None:
    (launch.folder / "train.py").write_text(RAISE)
    done = launch.run(*ONE_EACH, "--start=plain", "--python", str(python), "train.py")
    assert done.exit_code == 1
    assert "[node1:0] sum 2 of 2" in done.lines
    assert "launch: node2 rank 1 failed first (exit code 1), stopping the run on 2 hosts" in done.words
    start = done.words.index("  node2 rank 1 (local rank 0) at HH:MM:SS:")
    assert done.words[start + 1 : start + 4] == [
        '    File "train.py", line 12, in <module>',
        '      raise ValueError("the optimizer met a NaN")',
        "    ValueError: the optimizer met a NaN",
    ]
    assert done.words[-1] == "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)"


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
