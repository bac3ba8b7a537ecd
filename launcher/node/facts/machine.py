"""CPUs, memory, disks and limits of this node, as the ranks will see them."""

from __future__ import annotations

import hashlib
import os
import resource
from typing import Any

from launcher.node import clock
from launcher.node.facts import slurm
from launcher.node.system import read_rows, read_text

_HASHED_BYTES = 64 << 20  # no script is larger
_CAP_IPC_LOCK = 14  # linux/capability.h


def find_identity() -> str | None:
    """Return a text that is equal for two logins to the same machine or container; None if it is unknown."""
    try:
        return " ".join([str(clock.boot_id()), *(os.readlink("/proc/self/ns/%s" % name) for name in ("pid", "net"))])
    except OSError:
        return None


def describe_machine(workdir: str) -> dict[str, Any]:
    """Return memory, /dev/shm, limits and free disk space; None for what is unknown or unlimited."""
    return {
        "memory_free_mib": _read_meminfo().get("MemAvailable"),
        "shm_mib": _room("/dev/shm")[0],
        "memlock_kib": None if _may_lock_all() else _limit(resource.RLIMIT_MEMLOCK, 1 << 10),
        "open_files": _limit(resource.RLIMIT_NOFILE, 1),
        "disks": {path: _room(path)[1] for path in (workdir, "/tmp")},
    }


def _read_meminfo() -> dict[str, int]:
    return {row[0].rstrip(":"): int(row[1]) >> 10 for row in read_rows("/proc/meminfo")}


def _room(path: str) -> tuple[int | None, int | None]:
    """Return size and free space of a file system, in MiB."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize >> 20, found.f_bavail * found.f_frsize >> 20


def _limit(kind: int, unit: int) -> int | None:
    """Return a soft limit in multiples of `unit`, or None if there is no limit."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft // unit


def _may_lock_all() -> bool:
    """Tell whether this process has CAP_IPC_LOCK, as root usually does: then locked memory is unlimited."""
    rows = read_rows("/proc/self/status")
    return any(row[0] == "CapEff:" and int(row[1], 16) >> _CAP_IPC_LOCK & 1 for row in rows)


def hash_file(path: str) -> str | None:
    """Return the SHA-256 of a regular file; None for anything else, such as a pipe, whose read might never return."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()
    except OSError:
        return None


def count_cpus() -> int:
    """Return how many CPUs the run may use here at once, by affinity, quota and share of a Slurm job; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    return slurm.count_cpus(int(max(1, min(allowed, find_quota()))))


def find_quota(mounts: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float:
    """Return the CPU quota of the control groups (`docker run --cpus`, a pod's limit) in CPUs, or infinity.

    Each group above this process's own may have a limit too. In a container, `own` may name groups outside it, which
    don't exist there; the root of `mounts` is then the container's group (Documentation/admin-guide/cgroup-v2).
    """
    quotas = [float("inf")]
    version_1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for line in read_text(own).splitlines():
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
    words = " ".join(map(read_text, paths)).split()
    try:
        quota_us, period_us = map(int, words)
    except ValueError:
        return float("inf")
    return quota_us / period_us if quota_us > 0 else float("inf")
