"""Each node by itself: memory, limits, disks, left-overs, names; each finding as a whole text."""

from __future__ import annotations

import pytest
from machines.example_facts import JOB, ON_CPUS, SCRIPT, checked, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Probes, RunFolder, RunProcess
from launcher.job.job import Job
from launcher.preflight.condition import check
from launcher.preflight.findings import CheckedHost

LIMITS = "in /etc/security/limits.conf"
CLEAN = "stop them with `launch clean`"


def found(fact, job=JOB, *, is_alone=False):
    return told(check(CheckedHost(job, Host("gpu1"), fact), is_alone=is_alone))


def run(pid, mark="20261120-091233.ab12.0", *, is_owned=False):
    return RunProcess(pid, "python", mark, is_owned)


def folder(run_id):
    return RunFolder(f"/tmp/launch-{run_id}-ab12cd34", run_id)


@pytest.mark.parametrize(
    ("checks", "findings"),
    [
        ({}, []),
        ({"shm_mib": 1024, "memory_free_mib": 1024, "disks": {"/tmp": 100}}, []),
        (
            {"shm_mib": 64},
            [
                "warning: gpu1: /dev/shm is 64 MB: data loaders with workers may fail; "
                "fix: pass --shm-size=8g to docker run"
            ],
        ),
        (
            {"memory_free_mib": 1023},
            ["warning: gpu1: 1023 MB of memory free; fix: free some memory: the kernel may kill a rank"],
        ),
        (
            {"disks": {"/data": 99, "/tmp": 0, "/home/ann": None}},
            [
                "warning: gpu1: 99 MB free in /data; fix: free some space: checkpoints and temporary files need it",
                "warning: gpu1: 0 MB free in /tmp; fix: free some space: checkpoints and temporary files need it",
            ],
        ),
        (
            {"runs": tuple(map(run, (7, 8, 9, 10)))},
            [f"warning: gpu1: 4 leftover processes of run 20261120-091233 (pid 7, 8, 9, ...); fix: {CLEAN}"],
        ),
        (
            {"runs": (run(7, is_owned=True), run(8, "20261119-200000.cd34.1"), run(9, is_owned=True))},
            [
                f"warning: gpu1: 1 leftover process of run 20261119-200000 (pid 8); fix: {CLEAN}",
            ],
        ),
        (
            {"folders": (folder("a"),)},
            [
                "warning: gpu1: leftover directory of a run that is over: /tmp/launch-a-ab12cd34; "
                "fix: remove it with `launch clean`"
            ],
        ),
        (  # that of a run with leftover processes goes with these
            {"runs": (run(7, "b.cd34.0"),), "folders": tuple(map(folder, "abcd"))},
            [
                f"warning: gpu1: 1 leftover process of run b (pid 7); fix: {CLEAN}",
                "warning: gpu1: leftover directory of a run that is over: /tmp/launch-a-ab12cd34 and 2 more"
                "; fix: remove them with `launch clean`",
            ],
        ),
    ],
)
def test_what_a_node_may_break_of(checks, findings):
    assert found(checked(**checks)) == findings


def test_of_very_many_runs_the_first_are_named():
    runs = tuple(run(pid, f"2026-{pid}.cd34.1", is_owned=pid % 2 == 0) for pid in range(10_000))
    lines = found(checked(runs=runs))
    assert len(lines) == 17
    assert f"warning: gpu1: 4984 leftover processes of 4984 more runs; fix: {CLEAN}" in lines


LOCKED = (
    "problem: gpu1: 8192 KiB of memory may be locked, so NCCL can't use mlx5_0:1, mlx5_1:1; "
    f"fix: set memlock to unlimited {LIMITS}, or pass --env NCCL_IB_DISABLE=1"
)


@pytest.mark.parametrize(
    ("more", "job", "is_alone", "findings"),
    [
        ({}, JOB, False, [LOCKED]),
        ({"infiniband": ()}, JOB, False, []),
        ({"memlock_kib": None}, JOB, False, []),
        ({"memlock_kib": 1 << 20}, JOB, False, []),
        ({}, ON_CPUS, False, []),
        ({}, JOB, True, []),  # nothing goes over InfiniBand
        ({}, Job(SCRIPT, env={"NCCL_IB_DISABLE": "1"}), False, []),  # the remedy that is named
        ({}, Job(SCRIPT, env={"NCCL_IB_DISABLE": "0"}), False, [LOCKED]),
    ],
)
def test_memory_that_infiniband_locks(more, job, is_alone, findings):
    checks = {"infiniband": ("mlx5_0:1", "mlx5_1:1"), "memlock_kib": 8192}
    assert found(checked(**(checks | more)), job, is_alone=is_alone) == findings


SLOW = "correct /etc/resolv.conf, or list the hosts in /etc/hosts (this run sets RES_OPTIONS)"


def test_names():
    for probes in (None, Probes(), Probes(reverse_dns_s=0.5)):
        assert found(facts(checks=Checks(), probes=probes)) == []
    assert found(facts(checks=Checks(), probes=Probes(reverse_dns_s=0.51))) == [
        f"warning: gpu1: a reverse DNS look-up takes 0.5 s or more; fix: {SLOW}"
    ]
