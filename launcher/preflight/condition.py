"""Check each node by itself: memory, limits, disks, leftover processes, name look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from launcher.job.facts import Checks
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding, Severity
from launcher.wording import count

_SMALL_SHM_MIB = 1024  # docker's default is 64 MB
_LITTLE_MEMORY_MIB = 1024
_LITTLE_DISK_MIB = 100
_SMALL_MEMLOCK_KIB = 1 << 20
_FEW_RUNS = 16  # that are named one by one
_CLEAN = "stop them with `launch clean`"

_Found = Iterator[tuple[Severity, str, str]]


def check(node: CheckedHost, *, is_alone: bool) -> Iterator[Finding]:
    """Yield what on this node may break or slow down a run; `is_alone`: no other node takes part."""
    checks = node.fact.checks
    if checks is None:
        return
    for found in (_check_memory(checks), _check_runs(checks), _check_names(node)):
        for severity, text, fix in found:
            yield Finding((node.name,), text, fix, severity)
    if not is_alone:
        yield from _check_memlock(node, checks)


def _check_memory(checks: Checks) -> _Found:
    if checks.shm_mib is not None and checks.shm_mib < _SMALL_SHM_MIB:
        text = f"/dev/shm is {checks.shm_mib} MB: data loaders with workers may fail"
        yield WARNING, text, "pass --shm-size=8g to docker run"
    if checks.memory_free_mib is not None and checks.memory_free_mib < _LITTLE_MEMORY_MIB:
        yield WARNING, f"{checks.memory_free_mib} MB of memory free", "free some memory: the kernel may kill a rank"
    for path, free in checks.disks.items():
        if free is not None and free < _LITTLE_DISK_MIB:
            yield WARNING, f"{free} MB free in {path}", "free some space: checkpoints and temporary files need it"


def _check_memlock(node: CheckedHost, checks: Checks) -> Iterator[Finding]:
    """Check the limit of locked memory: NCCL locks what InfiniBand reads and writes.

    Ranks of one node need none, as they use NVLink and /dev/shm.
    """
    if not checks.infiniband or not node.job.wants_gpus or node.job.env.get("NCCL_IB_DISABLE") == "1":
        return
    if checks.memlock_kib is not None and checks.memlock_kib < _SMALL_MEMLOCK_KIB:
        text = f"{checks.memlock_kib} KiB of memory may be locked, so NCCL can't use {', '.join(checks.infiniband)}"
        fix = "set memlock to unlimited in /etc/security/limits.conf, or pass --env NCCL_IB_DISABLE=1"
        yield Finding((node.name,), text, fix, PROBLEM)


def _check_runs(checks: Checks) -> _Found:
    """Find leftover processes of earlier runs, by run."""
    left: dict[str, list[int]] = {}
    for run in checks.runs:
        if not run.is_owned:
            left.setdefault(run.run_id, []).append(run.pid)
    for run_id, pids in islice(left.items(), _FEW_RUNS):
        named = ", ".join(map(str, pids[:3])) + (", ..." if len(pids) > 3 else "")
        yield WARNING, f"{count(len(pids), 'leftover process')} of run {run_id} (pid {named})", _CLEAN
    more = [len(pids) for pids in islice(left.values(), _FEW_RUNS, None)]
    if more:
        yield WARNING, f"{count(sum(more), 'leftover process')} of {count(len(more), 'more run')}", _CLEAN
    yield from _check_folders([folder.path for folder in checks.folders if folder.run_id not in left])


def _check_folders(paths: list[str]) -> _Found:
    """Find directories of runs that are over, except of runs with leftover processes, which are reported already."""
    if paths:
        more = f" and {len(paths) - 1} more" if paths[1:] else ""
        fix = f"remove {'them' if more else 'it'} with `launch clean`"
        yield WARNING, f"leftover directory of a run that is over: {paths[0]}{more}", fix


def _check_names(node: CheckedHost) -> _Found:
    probes = node.fact.probes
    if probes is None:
        return
    if node.fact.has_slow_dns:
        text = f"a reverse DNS look-up takes {probes.reverse_dns_s:.1f} s or more"
        yield WARNING, text, "correct /etc/resolv.conf, or list the hosts in /etc/hosts (this run sets RES_OPTIONS)"
