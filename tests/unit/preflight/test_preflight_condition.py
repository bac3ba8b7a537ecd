"""Each node by itself: memory, limits, disks, left-overs, names; each finding as a whole text."""

from __future__ import annotations

import pytest
from machines.example_facts import JOB, ON_CPUS, SCRIPT, checked, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Probes, Route, RunFolder, RunProcess
from launcher.job.job import Job
from launcher.preflight.condition import check
from launcher.preflight.findings import Node

LIMITS = "in /etc/security/limits.conf"
CLEAN = "launch clean ends them"


def found(fact, job=JOB, *, is_alone=False):
    return told(check(Node(job, Host("gpu1"), fact), is_alone=is_alone))


def run(pid, mark="20261120-091233.ab12.0", *, is_owned=False):
    return RunProcess(pid, "python", mark, is_owned)


def folder(run_id):
    return RunFolder(f"/tmp/launch-{run_id}-ab12cd34", run_id)


@pytest.mark.parametrize(
    ("checks", "findings"),
    [
        ({}, []),
        ({"shm_mib": 1024, "memory_free_mib": 1024, "open_files": 1024, "disks": {"/tmp": 100}}, []),
        ({"shm_mib": None, "memory_free_mib": None, "open_files": None, "disks": {"/tmp": None}}, []),
        (
            {"shm_mib": 64},
            ["warning: gpu1: /dev/shm is 64 MB, data loaders with workers may fail (docker: --shm-size=8g)"],
        ),
        (
            {"memory_free_mib": 1023},
            ["warning: gpu1: 1023 MB of memory free (the kernel may kill a rank)"],
        ),
        (
            {"disks": {"/data": 99, "/tmp": 0, "/home/ann": None}},
            [
                "warning: gpu1: 99 MB free in /data (checkpoints and temporary files need room)",
                "warning: gpu1: 0 MB free in /tmp (checkpoints and temporary files need room)",
            ],
        ),
        (
            {"open_files": 256},
            [f"warning: gpu1: 256 open files a process at most (raise nofile {LIMITS})"],
        ),
        (
            {"runs": (run(7),)},
            [f"warning: gpu1: 1 process left of run 20261120-091233 (pid 7) ({CLEAN})"],
        ),
        (
            {"runs": tuple(map(run, (7, 8, 9, 10)))},
            [f"warning: gpu1: 4 processes left of run 20261120-091233 (pid 7, 8, 9, ...) ({CLEAN})"],
        ),
        (
            {"runs": (run(7, is_owned=True), run(8, "20261119-200000.cd34.1"), run(9, is_owned=True))},
            [
                "note: gpu1: run 20261120-091233 goes on there",
                f"warning: gpu1: 1 process left of run 20261119-200000 (pid 8) ({CLEAN})",
            ],
        ),
        (
            {"folders": (folder("a"),)},
            ["warning: gpu1: directory of a run that is over: /tmp/launch-a-ab12cd34 (launch clean removes it)"],
        ),
        (  # that of a run with leftover processes goes with these
            {"runs": (run(7, "b.cd34.0"),), "folders": tuple(map(folder, "abcd"))},
            [
                f"warning: gpu1: 1 process left of run b (pid 7) ({CLEAN})",
                "warning: gpu1: directory of a run that is over: /tmp/launch-a-ab12cd34 and 2 more"
                " (launch clean removes them)",
            ],
        ),
    ],
)
def test_what_a_node_may_break_of(checks, findings):
    assert found(checked(**checks)) == findings


def test_of_very_many_runs_the_first_are_named():
    runs = tuple(run(pid, f"2026-{pid}.cd34.1", is_owned=pid % 2 == 0) for pid in range(10_000))
    lines = found(checked(runs=runs))
    assert len(lines) == 34
    assert f"warning: gpu1: 4984 processes left of 4984 more runs ({CLEAN})" in lines
    assert "note: gpu1: 4984 more runs in progress there" in lines


LOCKED = (
    "problem: gpu1: 8192 KiB of memory may be locked, so NCCL can't use mlx5_0:1, mlx5_1:1 "
    f"(memlock unlimited {LIMITS}; or --env NCCL_IB_DISABLE=1)"
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


SLOW = "RES_OPTIONS is set for this run; mend /etc/resolv.conf, or list the nodes in /etc/hosts"


@pytest.mark.parametrize(
    ("probes", "route", "findings"),
    [
        (None, None, []),
        (Probes(), None, []),
        (Probes(reverse_dns_s=0.5, own_address="10.0.0.1"), None, []),
        (
            Probes(reverse_dns_s=0.51),
            None,
            [f"warning: gpu1: looking up the name of an address takes 0.5 s or more ({SLOW})"],
        ),
        (
            Probes(own_address=""),
            None,
            ["note: gpu1: its own host name can't be resolved (harmless here: interfaces are named)"],
        ),
        (
            Probes(own_address="127.0.1.1"),
            Route("eth1", "10.0.0.1"),
            [
                "note: gpu1: its own host name is 127.0.1.1 "
                "(harmless here; torchrun by hand would hang)"
            ],
        ),
        (Probes(own_address="127.0.1.1"), Route("lo", "127.0.0.1"), []),
        (Probes(own_address="127.0.1.1"), Route("lo", "::1"), []),
        (Probes(own_address="127.0.1.1"), Route(None, None), ["note: gpu1: its own host name is 127.0.1.1 "
          "(harmless here; torchrun by hand would hang)"]),
    ],
)  # fmt: skip
def test_names(probes, route, findings):
    assert found(facts(hostname="box7", checks=Checks(), probes=probes, route=route)) == findings


def test_nothing_is_said_where_nothing_was_asked():
    assert found(facts(probes=Probes(own_address=""))) == []
