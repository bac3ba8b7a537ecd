"""Join, check and measure: `python -m launcher.collectives`, on every rank under torchrun, or alone.

`run` shows all the steps. Each rank exits by itself, whatever happens to the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from launcher import distributed
from launcher.collectives.bandwidth import HEADING, measure_bandwidth
from launcher.collectives.checks import OK, WRONG, CheckResult, run_checks
from launcher.collectives.load import LOAD_S, measure_load
from launcher.collectives.pairs import describe_outliers, describe_pairs, find_hosts, measure_pairs
from launcher.collectives.watch import Watch, time_limit
from launcher.distributed import World

STEP_S = 20.0
JOIN_S = 30.0
JOIN_STEPS = {"cpu": 1.5, "cuda": 9.0}  # CUDA and NCCL took 55 s to start on a healthy host with 8 B200 (nccl#1646)
SLACK_S = 5.0  # torch's own message names the missing ranks better than this one
RESULTS_FILE = "results.json"


def summarize(checks: Sequence[CheckResult], world: World, hosts: int) -> str:
    """Return `all 14 checks passed with 4 ranks on 2 hosts (gloo, cpu)`."""
    total, wrong = len(checks), sum(check.result == WRONG for check in checks)
    right = sum(check.result == OK for check in checks)
    words = f"all {total} checks passed" if right == total else f"{right} of {total} checks passed"
    words += f", {wrong} failed" if wrong else ""
    words += f", {total - wrong - right} skipped" if total - wrong - right else ""
    return f"{words} with {count_words(world.world_size, hosts)} ({world.backend}, {world.device.type})"


def count_words(ranks: int, hosts: int) -> str:
    """Return `4 ranks on 2 hosts`."""
    return f"{ranks} rank{'s' if ranks != 1 else ''} on {hosts} host{'s' if hosts != 1 else ''}"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all checks passed, 1 for a wrong result, 2 for a wrong environment or device."""
    try:
        return run(read_options(argv))
    except distributed.WorldError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001  # any error must show its traceback and end with exit code 1
        traceback.print_exc()
        return 1


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options that `test-distributed` passes."""
    parser = argparse.ArgumentParser(prog="python -m launcher.collectives", description=__doc__)
    parser.add_argument("--names", type=lambda text: text.split(","), default=[], help="hosts in rank order: a,b")
    parser.add_argument("--max-size", type=int, metavar="MIB", help="largest size in the bandwidth table")
    parser.add_argument("--load", type=float, metavar="S", help="seconds under load (default: 10, on CPUs 1)")
    parser.add_argument("--only-checks", action="store_true", help="measure nothing")
    parser.add_argument("--timeout", type=float, default=STEP_S, metavar="S", help="seconds per step (default: 20)")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> int:
    """Join the other ranks, then run each part in turn; return the exit code, which is the same on all ranks."""
    # DDP's first model imports it, and on a slow disk that takes longer than a step may.
    importlib.import_module("torch._dynamo")
    began_at = time.monotonic()
    join_s = limit_joining("cuda" if torch.cuda.is_available() else "cpu", options.timeout)
    with time_limit("joining the other ranks", join_s + SLACK_S):
        world = distributed.init(timeout_s=join_s)
    watch = Watch(world, options.timeout, options.names)
    with watch.step("meeting the other ranks"):
        distributed.barrier()
        hosts = find_hosts(world, options.names)
    initialised_s = time.monotonic() - began_at
    say(world, f"initialized in {initialised_s:.1f} s ({count_words(world.world_size, len(hosts.names))})")
    checks = run_checks(world, watch)
    speeds, pairs, loads = [], [], []
    if not options.only_checks and world.world_size > 1:
        say(world, HEADING)
        right = [check.name for check in checks if check.dtype == "fp32" and check.result == OK]
        for speed in measure_bandwidth(world, watch, right, options.max_size):
            say(world, str(speed))
            speeds.append(speed)
        pairs = measure_pairs(world, watch, hosts)
        say(world, *describe_pairs(hosts.names, pairs), *describe_outliers(hosts.names, pairs))
    load_s = LOAD_S[world.device.type] if options.load is None else options.load
    if not options.only_checks and load_s:  # `launch` compares the devices, since it knows what they are called
        say(world, f"loading all {'GPUs' if world.device.type == 'cuda' else 'CPUs'} for {load_s:g} s")
        loads = measure_load(world, watch, hosts, load_s)
    passed = not any(check.result == WRONG for check in checks)  # a skipped check isn't wrong
    say(world, summarize(checks, world, len(hosts.names)))
    folder = os.environ.get("LAUNCH_FILES")  # the files there are copied to the launch host
    if world.is_main and folder:
        results = {
            "ranks": world.world_size, "hosts": hosts.names, "backend": world.backend, "device": world.device.type,
            "initialised_s": initialised_s, "checks": checks, "bandwidth": speeds, "pairs": pairs, "loads": loads,
            "passed": passed,
        }  # fmt: skip
        Path(folder, RESULTS_FILE).write_text(json.dumps(results, indent=2, default=asdict) + "\n", "utf-8")
    with watch.step("the last barrier"):
        distributed.barrier()  # otherwise the first rank to leave would close the others' connections
    return 0 if passed else 1


def limit_joining(device: str, step_s: float) -> float:
    """Return in how many seconds all ranks must have joined, where a step may take so many."""
    return max(JOIN_S, JOIN_STEPS[device] * step_s)


def say(world: World, *lines: str) -> None:
    """Print lines on rank 0 only."""
    if world.is_main and lines:
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    # Not a normal exit, even after success: now and then gloo's threads turn that into SIGABRT.
    distributed.leave(main())
