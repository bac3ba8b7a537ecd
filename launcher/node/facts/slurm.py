"""What Slurm gives a run on this node, read from the environment of the step or batch script that started the run.

The environment is needed where Slurm runs without cgroups: there nvidia-smi and the kernel also show the GPUs and CPUs
of other jobs.
"""

from __future__ import annotations

import os
from typing import Any

from launcher.node.facts import gpus, network


def is_in_job() -> bool:
    """Tell whether Slurm has started this process; an SSH login to a job's node has none of these variables."""
    return "SLURMD_NODENAME" in os.environ and "SLURM_JOB_ID" in os.environ


def count_cpus(allowed: int) -> int:
    """Return how many of the CPUs that the kernel allows are the job's."""
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return min(allowed, int(given)) if is_in_job() and given.isdigit() else allowed


def choose_gpus(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the found GPUs that are the job's; all of them if Slurm doesn't manage GPUs here."""
    if not is_in_job():
        return found
    # Not HIP's variable: it numbers only the GPUs that Slurm has left visible.
    names = [name for name in (gpus.CUDA, gpus.ROCR) if name in os.environ]
    given = gpus.find_visible(found, {name: os.environ[name] for name in names})
    if given is None or gpus.UNKNOWN in given:
        return found
    return [gpu for gpu in found if gpu["index"] in given]


def find_ends() -> tuple[str | None, str | None]:
    """Return the launcher's address, and this node's address on the route to it; None for both outside a step."""
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") if is_in_job() else None
    if launcher is None:
        return None, None
    return launcher, network.find_route(launcher).get("address")
