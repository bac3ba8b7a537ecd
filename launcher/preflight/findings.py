"""What a check says, and how equal findings of several hosts become one.

A Finding is of hosts that answer; of one that does not there is a HostFailure. `launcher.errors` tells the way of both
to the screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.facts import NodeFacts
from launcher.job.job import Job


class Severity(Enum):
    """What a finding means for a run."""

    PROBLEM = "problem"  # it would break: the launch stops
    WARNING = "warning"  # it may be slow, or fail later: one line, and on
    NOTE = "note"  # `launch check` alone shows it

    @property
    def rank(self) -> int:
        """The place in the order of severities; 0 is the worst."""
        return list(Severity).index(self)


PROBLEM, WARNING, NOTE = Severity


@dataclass(frozen=True, slots=True)
class Node:
    """What a check looks at: the job, one of its hosts, and the facts of that host."""

    job: Job
    host: Host
    fact: NodeFacts

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found on one or more hosts, what it means for a run, and the remedy."""

    hosts: tuple[str, ...]
    text: str
    fix: str = ""
    severity: Severity = PROBLEM

    def __str__(self) -> str:
        return f"{fold_names(self.hosts)}: {self.text}" + (f"\n  {self.fix}" if self.fix else "")

    @property
    def one_line(self) -> str:
        """The finding in one line, with the remedy in parentheses."""
        return f"{fold_names(self.hosts)}: {self.text}" + (f" ({self.fix})" if self.fix else "")


def on_cpus(job: Job) -> str:
    """Return the options that run the same job without GPUs; `test-distributed`, for one, has no --nproc."""
    options = "--cpu" if job.nproc and job.gpus is None else "--nproc N --cpu"
    return f"on CPUs: LAUNCH_OPTS={options}" if job.in_script else f"on CPUs: {options}"


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings that differ only in their hosts."""
    folded: dict[Finding, list[str]] = {}
    for finding in findings:
        folded.setdefault(replace(finding, hosts=()), []).extend(finding.hosts)
    return [replace(finding, hosts=tuple(dict.fromkeys(names))) for finding, names in folded.items()]
