"""Measure how soon the ranks have done their first all-reduce, by torchrun and warm, against torchrun by hand."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.farm import Farm, farm
from bench.process_tree import memory_mib
from bench.timing import Row, compare_turns, take_turns
from bench.ways import LAUNCH

FIRST_ALL_REDUCE = Path(__file__).parent / "first_all_reduce.py"
WARM = ("--start", "warm")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def first_all_reduce() -> list[Row]:
    """Measure 2 hosts x 2 processes until the first all-reduce, against torchrun by hand over parallel ssh."""
    with farm(2) as hosts:
        ours, by_hand = take_turns(5, lambda: _launch(hosts), lambda: _by_hand(hosts))
    return [compare_turns("first all-reduce / by hand", ours, by_hand, 1.10)]


def checks() -> list[Row]:
    """Measure what the comparison of the hosts and their probes add to the time until the first all-reduce."""
    with farm(2) as hosts:
        checked, bare = take_turns(7, lambda: _launch(hosts), lambda: _launch(hosts, "--no-check"))
    return [compare_turns("with checks / --no-check", checked, bare, 1.05)]


def warm_start() -> list[Row]:
    """Measure the same with --start warm, also for 8 processes on one host, and the memory that these hold."""
    with farm(2) as hosts:
        warm, by_hand = take_turns(10, lambda: _launch(hosts, *WARM), lambda: _by_hand(hosts))
    singlenode = [*LAUNCH, "singlenode", *WARM, "--nproc", "8", "--cpu", "--python", sys.executable]
    alone = [*TORCHRUN, "--standalone", "--nproc-per-node", "8"]
    held: dict[str, list[float]] = {"warm": [], "torchrun": []}
    with tempfile.TemporaryDirectory() as logs:
        warm_8, alone_8 = take_turns(
            10,
            lambda: _time_to_mark([*singlenode, "--log-dir", logs, FIRST_ALL_REDUCE, "held"], held["warm"]),
            lambda: _time_to_mark(["env", "OMP_NUM_THREADS=1", *alone, FIRST_ALL_REDUCE, "held"], held["torchrun"]),
        )
    return [
        compare_turns("warm: first all-reduce / by hand", warm, by_hand, 0.6),
        compare_turns("warm: 8 ranks on one host / torchrun", warm_8, alone_8, 0.35),
        compare_turns("warm: memory of 8 ranks / torchrun", held["warm"], held["torchrun"], 0.6, "MiB"),
    ]


def _launch(hosts: Farm, *options: str) -> float:
    with tempfile.TemporaryDirectory() as logs:
        argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "2", "--cpu"]
        argv += ["--python", sys.executable, "--workdir", "/", "--log-dir", logs, *options, FIRST_ALL_REDUCE]
        return _time_to_mark(argv)


def _by_hand(hosts: Farm) -> float:
    """Start what a user would type: parallel ssh, a fixed port and OMP_NUM_THREADS, as torchrun advises."""
    torchrun = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2"]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", "29577"]
    lines = []
    for rank, name in enumerate(hosts.names):
        command = shlex.join([*torchrun, "--node-rank", str(rank), str(FIRST_ALL_REDUCE)])
        remote = f"GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 {command}"
        lines.append(shlex.join(["ssh", "-F", str(hosts.ssh_config), name, remote]))
    return _time_to_mark(["/bin/sh", "-c", " & ".join(lines) + " & wait"])


def _time_to_mark(argv: Sequence[str | Path], held_mib: list[float] | None = None) -> float:
    """Return the seconds until the first all-reduce; held_mib: gets what the processes of the program hold then."""
    started = time.monotonic()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    seconds = None
    for line in process.stdout:
        if b"first all-reduce done" in line and seconds is None:
            seconds = time.monotonic() - started
            if held_mib is not None:
                held_mib.append(memory_mib(process.pid))
    _, stderr = process.communicate()
    if seconds is None or process.returncode:
        raise RuntimeError(f"{argv}: exit code {process.returncode}\n{stderr.decode()}")
    return seconds
