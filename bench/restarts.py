"""Measure how soon a run that has failed runs again, against its first start, and started warm against torchrun."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.farm import Farm, farm
from bench.timing import Row, compare_turns, take_turns
from bench.ways import LAUNCH

RUNS = 5
MOST_MORE_S = 1.5  # than a first start

_SCRIPT = """\
import os, sys, time
print("begun", time.time(), flush=True)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("reduced", time.time(), flush=True)
if os.environ["LAUNCH_ATTEMPT"] == "0":
    time.sleep(0.5)
    print("ended", time.time(), flush=True)
    sys.exit(3)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The seconds of one run that was started twice."""

    first: float  # from the command to its first rank
    again: float  # from the end of the last rank to the first one of the restart
    reduced: float  # from there to the end of its first all-reduce


def restarts() -> list[Row]:
    """Measure 2 hosts x 2 processes that fail once."""
    measured: dict[str, list[Restarted]] = {"torchrun": [], "warm": []}

    def measure(hosts: Farm, start: str) -> float:
        measured[start].append(_measure(hosts, start))
        return measured[start][-1].reduced

    with farm(2) as hosts:
        warm, torchrun = take_turns(RUNS, lambda: measure(hosts, "warm"), lambda: measure(hosts, "torchrun"))
    first = statistics.median(each.first for each in measured["torchrun"])
    again = statistics.median(each.again for each in measured["torchrun"])
    detail = f"{again:.2f} s against {first:.2f} s, medians of {RUNS}"
    return [
        Row("a restart - the first start", again - first, "s", MOST_MORE_S, detail),
        compare_turns("warm: a restart's first all-reduce / torchrun", warm, torchrun, 0.4),
    ]


def _measure(hosts: Farm, start: str) -> Restarted:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(_SCRIPT)
        argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "2", "--cpu"]
        argv += ["--python", sys.executable, "--workdir", folder, "--start", start, "--restarts", "1", "train.py"]
        began = time.time()
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv}: exit code {done.returncode}\n{done.stderr}")
    begun, ended, reduced = (
        sorted(float(found) for found in re.findall(rf"{word} ([\d.]+)", done.stdout))
        for word in ("begun", "ended", "reduced")
    )
    return Restarted(begun[0] - began, begun[4] - ended[-1], reduced[-1] - ended[-1])
