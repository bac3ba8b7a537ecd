"""Measure how soon a run that has failed runs again, against its first start."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.farm import Farm, farm
from bench.timing import Row
from bench.ways import LAUNCH

RUNS = 5
MOST_MORE_S = 1.5  # than a first start

_SCRIPT = """\
import os, sys, time
print("begun", time.time(), flush=True)
if os.environ["LAUNCH_ATTEMPT"] == "0":
    time.sleep(0.5)
    print("ended", time.time(), flush=True)
    sys.exit(3)
"""


def restarts() -> list[Row]:
    """Measure 2 hosts x 2 processes: from the end of the last process to the first one of the next attempt."""
    with farm(2) as hosts:
        measured = [_measure(hosts) for _ in range(RUNS)]
    first, again = (statistics.median(times) for times in zip(*measured, strict=True))
    detail = f"{again:.2f} s against {first:.2f} s, medians of {RUNS}"
    return [Row("a restart - the first start", again - first, "s", MOST_MORE_S, detail)]


def _measure(hosts: Farm) -> tuple[float, float]:
    """Return the seconds from the command to its first rank, and from the last rank to the first one of the restart."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(_SCRIPT)
        argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "2", "--cpu"]
        argv += ["--python", sys.executable, "--workdir", folder, "--restarts", "1", "train.py"]
        began = time.time()
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv}: exit code {done.returncode}\n{done.stderr}")
    begun, ended = (
        sorted(float(found) for found in re.findall(rf"{word} ([\d.]+)", done.stdout)) for word in ("begun", "ended")
    )
    return begun[0] - began, begun[4] - ended[-1]
