"""Facts of healthy nodes, for tests of what follows from facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Gpu, NodeFacts, Route
from launcher.job.job import TRAINER_MODULE, Job, Program, ProgramKind
from launcher.preflight.findings import CheckedHost, Finding

H200 = tuple(Gpu(index, "H200", 143771, "580.159") for index in range(8))
SCRIPT = Program(ProgramKind.SCRIPT, "train.py")
COMMAND = Program(ProgramKind.COMMAND, "hostname")
BUILTIN = Program(ProgramKind.BUILTIN, TRAINER_MODULE)
JOB = Job(SCRIPT)
ON_CPUS = Job(SCRIPT, nproc=2, cpu=True)


def facts(**more: object) -> NodeFacts:
    """Return the facts of a node with eight GPUs: only those that a plan needs."""
    known = {
        "folder": "/tmp/run",
        "home": "/root",
        "gpus": H200,
        "python": "/usr/bin/python3",
        "python_version": "3.11",
        "torch_version": "2.13.0",
        "cuda_version": "13.0",
        "nccl_version": "2.28.9",
        "route": Route("eth1", "10.0.0.1", 41873),
    }
    return NodeFacts(**(known | more))


def checked(**checks: object) -> NodeFacts:
    """Return the facts of a node with these checks."""
    return facts(checks=Checks(**checks))


def nodes_of(job: Job, every_fact: Sequence[NodeFacts]) -> list[CheckedHost]:
    """Return one node per fact: gpu1, gpu2, ..."""
    return [CheckedHost(job, Host(f"gpu{number}"), fact) for number, fact in enumerate(every_fact, 1)]


def told(findings: Iterable[Finding]) -> list[str]:
    """Return each finding as one text that begins with its severity."""
    return [f"{finding.severity.value}: {finding.one_line}" for finding in findings]
