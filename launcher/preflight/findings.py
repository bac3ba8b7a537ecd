"""Findings: what a check found on one or more hosts. Equal findings of several hosts are merged.

A Finding is about hosts that respond; a host that doesn't has a HostFailure. `launcher.errors` describes how both get
to the screen.
"""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from launcher.errors import ChecksFailed
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.facts import NodeFacts
from launcher.job.job import Job


class Severity(str, Enum):
    """What a finding means for a run; a member is a string for programs that use `launcher`."""

    PROBLEM = "problem"  # the run would break, so it isn't started
    WARNING = "warning"  # the run may be slow or fail later: it starts after a line about it
    NOTE = "note"  # shown by `launch check` alone

    __str__ = str.__str__

    @property
    def rank(self) -> int:
        """The position in the order of severities; 0 is the worst."""
        return list(Severity).index(self)


PROBLEM, WARNING, NOTE = Severity


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """What a check looks at: the job, one of its hosts, and the facts of that host."""

    job: Job
    host: Host
    fact: NodeFacts

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    def name_free(self, number: int) -> str:
        """Return `--include gpu1:2,3`, so many GPUs that nobody has claimed or uses; empty if there are fewer."""
        free = [
            str(gpu.index)
            for gpu in self.fact.gpus
            if not gpu.processes and gpu.fault is None and gpu.index not in self.fact.claimed_gpus
        ]
        return f"--include {self.name}:{','.join(free[:number])}" if 0 < number <= len(free) else ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found on one or more hosts, what it means for a run, and the remedy."""

    hosts: tuple[str, ...]  # the hosts that the finding is about
    text: str  # the finding, in words
    fix: str = ""  # what to do
    severity: Severity = PROBLEM  # `problem`, `warning` or `note`

    def __str__(self) -> str:
        return f"{fold_names(self.hosts)}: {self.text}" + (f"\n  fix: {self.fix}" if self.fix else "")

    def as_record(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {"severity": self.severity.value, "hosts": self.hosts, "text": self.text, "fix": self.fix}

    @property
    def one_line(self) -> str:
        """The finding and its remedy in one line."""
        return f"{fold_names(self.hosts)}: {self.text}" + (f"; fix: {self.fix}" if self.fix else "")


def on_cpus(job: Job) -> str:
    """Return the remedy that runs the same job without GPUs; `test-distributed`, for example, has no --nproc."""
    options = "--cpu" if job.nproc and job.gpus is None else "--nproc N --cpu"
    return f"run on CPUs: LAUNCH_OPTS={options}" if job.in_script else f"run on CPUs: {options}"


def refuse_problems(findings: Iterable[Finding]) -> None:
    """Raise ChecksFailed if a finding would break the run."""
    problems = [finding for finding in findings if finding.severity is PROBLEM]
    if problems:
        names = dict.fromkeys(name for problem in problems for name in problem.hosts)
        raise ChecksFailed("\n".join(map(str, problems)), hosts=tuple(names), findings=tuple(problems))


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings that differ only in their hosts."""
    folded: dict[Finding, list[str]] = {}
    for finding in findings:
        folded.setdefault(replace(finding, hosts=()), []).extend(finding.hosts)
    return [replace(finding, hosts=tuple(dict.fromkeys(names))) for finding, names in folded.items()]
