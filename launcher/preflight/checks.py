"""Run the checks on the facts of all nodes: those that every run needs, or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from launcher.diagnosis.tracebacks import mask
from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts, SetupFailure
from launcher.job.job import Job
from launcher.preflight import comparison, condition, gpus, network, packages, requirements
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding, fold

# On these, a file has the same inode on every host, also on the server whose own disk it is.
_SHARED = {"beegfs", "ceph", "gpfs", "lustre", "nfs", "nfs4"}
_LOCAL = {
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs",
}  # fmt: skip


def find_problems(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[Finding]:
    """Return what would make the plan itself wrong, folded; these checks run even with --no-check."""
    nodes = _nodes(job, hosts, facts)
    found = chain(comparison.check_machines(nodes), *(requirements.check(node) for node in nodes))
    return fold(finding for finding in found if finding.severity is PROBLEM)


def find_all(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[Finding]:
    """Return the findings of all checks, folded; problems first, then warnings, then notes."""
    nodes = _nodes(job, hosts, facts)
    is_alone = len(nodes) == 1
    each = [
        [
            *requirements.check(node),
            *gpus.check(node),
            *condition.check(node, is_alone=is_alone),
        ]
        for node in nodes
    ]
    found = chain(
        requirements.find_passed_over(nodes), comparison.check_machines(nodes), *each, network.check(nodes),
        comparison.check(nodes), packages.check(nodes),
    )  # fmt: skip
    return sorted(fold(found), key=lambda finding: finding.severity.rank)


def find_busy(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[Finding]:
    """Return those of all findings that a run can wait for: processes that use its GPUs."""
    return fold(chain.from_iterable(map(gpus.find_busy, _nodes(job, hosts, facts))))


def warn_of_incidents(hosts: Sequence[Host], incidents: Mapping[str, str]) -> list[Finding]:
    """Return a warning for each host with which something went wrong in earlier runs."""
    return [
        Finding((host.name,), incidents[host.name], "test it, or remove that run with launch ps --forget RUN", WARNING)
        for host in hosts
        if host.name in incidents
    ]


def warn_of_checkpoints(hosts: Sequence[Host], facts: Sequence[NodeFacts], folder: str) -> list[Finding]:
    """Return a warning if hosts don't see what node 0 saves in `folder`: they would resume from something else."""
    names = tuple(host.name for host, fact in zip(hosts, facts, strict=True) if fact.sees_checkpoints is False)
    text = f"does not share {folder}, where the checkpoints are, with {hosts[0].name}" if names else ""
    fix = "save to a file system that all hosts share, or save on each host what its ranks resume from"
    return [Finding(names, text, fix, WARNING)] if names else []


def is_shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Tell whether two answers to SHARE are about one directory; None: nobody knows.

    If one host lacks it, the nearest directory above it that both have is compared: for some time, a network file
    system may still miss what was just made.
    """
    both = zip(one["levels"], other["levels"], strict=False)
    found = next(((here, there) for here, there in both if here and there), None)
    if found is None:
        return None
    (device, inode, kind), (other_device, other_inode, other_kind) = found
    kernels, kinds = {one["kernel"], other["kernel"]}, {kind, other_kind}
    if len(kernels) == 1 and None not in kernels and device == other_device:
        return bool(inode == other_inode)
    if inode == other_inode and kinds & _SHARED:
        return True
    return False if kinds <= _SHARED | _LOCAL and None not in kernels else None


def _nodes(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[CheckedHost]:
    """Return the hosts as they are checked.

    If their setup failed alike, they all have the words of the first: those of others may differ in a host's name or a
    number, and would be as many findings.
    """
    nodes, failures = [], dict[tuple[str, ...], SetupFailure]()
    for host, fact in zip(hosts, facts, strict=True):
        failure = fact.setup_failure
        if failure is not None:
            lines = [
                mask(line.replace(fact.hostname or host.name, "").replace(host.name, "")) for line in failure.lines
            ]
            failure = failures.setdefault((failure.step, failure.reason, *lines), failure)
        nodes.append(CheckedHost(job, host, replace(fact, setup_failure=failure)))
    return nodes
