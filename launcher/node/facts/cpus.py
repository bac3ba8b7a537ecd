"""How many CPUs a run may use on this node, given its affinity, its container's quota and its share of a Slurm job."""

from __future__ import annotations

import os

from launcher.node.facts import slurm


def count_cpus() -> int:
    """Return how many CPUs the run may use on this node at once, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return slurm.count_cpus(int(max(1, min(allowed, find_quota()))))


def find_quota(mounts: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float:
    """Return the CPU quota of the control groups (`docker run --cpus`, a pod's limit) in CPUs, or infinity.

    Each group above this process's own may have a limit too. In a container, `own` may name groups outside it, which
    don't exist there; the root of `mounts` is then the container's group (Documentation/admin-guide/cgroup-v2).
    launcher/distributed.py does the same for each rank; people copy that file alone, so it can't import this one.
    """
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        return float("inf")
    quotas = [float("inf")]
    version_1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = os.path.join(mounts, "cpu") if controllers else mounts  # version 1 has a tree for each controller
        for step in ("", *path.strip("/").split("/")):
            group = os.path.join(group, step)
            quotas.append(_read_quota(os.path.join(group, "cpu.max")))
            quotas.append(_read_quota(*(os.path.join(group, name) for name in version_1)))
    return min(quotas)


def _read_quota(*paths: str) -> float:
    """Return quota / period of one group, or infinity: a group without a limit has `max` or -1, or no such file."""
    words = []
    try:
        for path in paths:
            with open(path) as file:
                words += file.read().split()
        quota_us, period_us = map(int, words)
    except (OSError, ValueError):
        return float("inf")
    return quota_us / period_us if quota_us > 0 else float("inf")
