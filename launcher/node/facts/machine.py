"""CPUs, memory, disks, limits and code of this node, as the ranks will see them."""

from __future__ import annotations

import hashlib
import os
import resource
from itertools import islice
from typing import Any, Iterator

from launcher.node.system import boot_id, read_rows, read_text

_HASHED_BYTES = 64 << 20  # no script is larger
_CAP_IPC_LOCK = 14  # linux/capability.h
MOST_CODE_FILES = 2000
CODE_TIMEOUT_S = 0.6  # of the process that reads them; on a file system that responds it takes less
NO_CODE_HASH: dict[str, Any] = {"code_hash": None}
_NO_CODE = ("__pycache__", "node_modules", "site-packages")


def find_identity() -> str | None:
    """Return a text that is equal for two logins to the same machine or container; None if it is unknown."""
    try:
        return " ".join([str(boot_id()), *(os.readlink("/proc/self/ns/%s" % name) for name in ("pid", "net"))])
    except OSError:
        return None


def describe_machine(workdir: str) -> dict[str, Any]:
    """Return memory, /dev/shm, limits and free disk space; None for what is unknown or unlimited."""
    return {
        "memory_free_mib": _read_meminfo().get("MemAvailable"),
        "shm_mib": _room("/dev/shm")[0],
        "memlock_kib": None if _may_lock_all() else _limit_memlock(),
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


def _limit_memlock() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft >> 10


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


def hash_code(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return one hash over the Python files beside and below the script: hosts with other code compute other numbers.

    It is None if they are too many, or without the directory. Only what a run is likely to import counts, and not the
    script itself, which has a hash of its own.

    wanted: the launcher's PREPARE, whose `code` has `folder`, relative to the working directory, and `script`: its name
    in there, or None.
    """
    place = wanted["code"]
    root = os.path.join(os.path.expanduser(wanted.get("workdir") or "~"), place["folder"])
    try:
        paths = sorted(islice((path for path in _find_files(root) if path != place["script"]), MOST_CODE_FILES + 1))
        found = [(path, hash_file(os.path.join(root, path)) or "-") for path in paths]
    except OSError:
        return NO_CODE_HASH
    if len(found) > MOST_CODE_FILES:
        return NO_CODE_HASH
    sums = "".join("%s\0%s\n" % each for each in found)
    return {"code_hash": hashlib.sha256(os.fsencode(sums)).hexdigest()}


def _find_files(root: str) -> Iterator[str]:
    """Yield the paths of the Python files below `root`, on its file system: a home may have other machines' disks."""
    device = os.stat(root).st_dev
    for base, folders, names in os.walk(root):
        if "pyvenv.cfg" in names and base != root:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _NO_CODE and _is_on(device, os.path.join(base, name))]
        for name in names:
            path = os.path.join(base, name)
            if name.endswith(".py") and not name.startswith(".") and os.path.isfile(path):
                yield os.path.relpath(path, root)


def _is_on(device: int, folder: str) -> bool:
    try:
        return not os.path.basename(folder).startswith(".") and os.lstat(folder).st_dev == device
    except OSError:  # it was removed meanwhile
        return False


def count_cpus() -> int:
    """Return how many CPUs the kernel allows at once, by affinity and quota; at least 1."""
    return int(max(1, min(len(os.sched_getaffinity(0)), find_quota())))


def find_quota(group: str = "/sys/fs/cgroup") -> float:
    """Return the CPU quota of this container (`docker run --cpus`, a pod's limit) in CPUs, or infinity.

    Its control group, of version 2 or 1, is the root of those that it sees (Documentation/admin-guide/cgroup-v2).
    """
    text = read_text(group + "/cpu.max") or " ".join(
        read_text("%s/cpu/cpu.cfs_%s_us" % (group, name)) for name in ("quota", "period")
    )
    try:
        quota_us, period_us = map(int, text.split())
    except ValueError:  # without a limit it is `max`
        return float("inf")
    return quota_us / period_us if quota_us > 0 else float("inf")
