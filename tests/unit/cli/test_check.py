"""launch check: the table whole as it is printed, its exit code, and the same as JSON."""

from __future__ import annotations

import json

import pytest
from machines.example_facts import JOB, checked, facts

from launcher.cli import check
from launcher.errors import EXIT_PREFLIGHT, EXIT_UNREACHABLE, HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.facts import Gpu, GpuProcess, Probe, Probes, RunProcess
from launcher.preflight.findings import NOTE, PROBLEM, WARNING, Finding
from launcher.runs.inspection import Inspection

FINE = facts(torch_version="2.13.0")
PYTHON = "python 3.11 (/usr/bin/python3)"
TRAITS = f"8 x H200 140 GB, driver 580.159, {PYTHON}, torch 2.13.0, CUDA 13.0, NCCL 2.28.9, data over eth1"
SMALL = Finding(("gpu2",), "/dev/shm is 64 MB", "pass --shm-size=8g to docker run", WARNING)
BUSY = Finding(("gpu1", "gpu2"), "GPU 0 busy", "take others", PROBLEM)
LONELY = Finding(("gpu3",), "32 CPUs, the others 64 CPUs", "", NOTE)
OFF = HostFailure("gpu4", HostFailureKind.TIMED_OUT, "10.0.0.4 port 22 does not answer", "is it on?", "10.0.0.4")
NAMELESS = HostFailure("gpu5.cluster", HostFailureKind.NAME_UNKNOWN, "no such name")


def inspection(*findings, hosts=3, failures=(), every_fact=None, seconds=1.24):
    every_fact = [FINE] * hosts if every_fact is None else every_fact
    named = tuple(Host(f"gpu{number}") for number in range(1, len(every_fact) + 1))
    return Inspection(named, tuple(every_fact), findings, tuple(failures), seconds)


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            inspection(),
            [
                "3 hosts responded (1.2 s)",
                f"  on all  {TRAITS}",
                "nothing would break a run",
            ],
        ),
        (
            inspection(BUSY, SMALL, LONELY),
            [
                "3 hosts responded (1.2 s)",
                f"  on all    {TRAITS}",
                "! gpu[1-2]  GPU 0 busy",
                "            fix: take others",
                "  gpu2      /dev/shm is 64 MB",
                "            fix: pass --shm-size=8g to docker run",
                "  gpu3      32 CPUs, the others 64 CPUs",
                "1 problem would break a run, 1 warning",
            ],
        ),
        (
            inspection(SMALL, failures=[OFF, NAMELESS]),
            [
                "3 of 5 hosts responded (1.2 s)",
                f"  on all        {TRAITS}",
                "! gpu4          10.0.0.4 port 22 does not answer",
                "                fix: is it on?",
                "! gpu5.cluster  no such name",
                "  gpu2          /dev/shm is 64 MB",
                "                fix: pass --shm-size=8g to docker run",
                "2 problems would break a run, 1 warning",
            ],
        ),
    ],
    ids=["well", "all kinds", "failures"],
)
def test_a_table(found, lines):
    assert check.table(JOB, found) == lines


@pytest.mark.parametrize(
    ("found", "exit_code"),
    [
        (inspection(), 0),
        (inspection(SMALL, LONELY), 0),
        (inspection(SMALL, BUSY), EXIT_PREFLIGHT),
        (inspection(failures=[OFF]), EXIT_UNREACHABLE),
        (inspection(BUSY, failures=[OFF]), EXIT_UNREACHABLE),
        (inspection(hosts=0), 0),
    ],
)
def test_exit_codes(found, exit_code):
    assert check.exit_code(found) == exit_code


def test_a_record_tells_all_and_comes_back_from_json():
    gpu = Gpu(0, "H200", 143771, "580.159", processes=(GpuProcess(7, None, "ann"),))
    full = checked(disks={"/data": 5, "/tmp": None}, runs=(RunProcess(7, "python", "run.a.0", is_owned=False),))
    full = facts(checks=full.checks, gpus=(gpu,), probes=Probes((Probe("gpu1", "10.0.0.1", 1, True, "refused"),)))
    record = check.as_record(JOB, inspection(BUSY, SMALL, every_fact=[full, FINE], failures=[OFF, NAMELESS]))
    read = json.loads(json.dumps(record))
    assert {name: read[name] for name in ("exit_code", "on_all", "findings", "unreachable")} == {
        "exit_code": 69,
        "on_all": ["driver 580.159", PYTHON, "torch 2.13.0", "CUDA 13.0", "NCCL 2.28.9", "data over eth1"],
        "findings": [
            {"severity": "problem", "hosts": ["gpu1", "gpu2"], "text": "GPU 0 busy", "fix": "take others"},
            {
                "severity": "warning",
                "hosts": ["gpu2"],
                "text": "/dev/shm is 64 MB",
                "fix": "pass --shm-size=8g to docker run",
            },
        ],
        "unreachable": [
            {
                "host": "gpu4",
                "kind": "timed out",
                "text": "10.0.0.4 port 22 does not answer",
                "fix": "is it on?",
                "address": "10.0.0.4",
            },
            {"host": "gpu5.cluster", "kind": "name unknown", "text": "no such name", "fix": "", "address": ""},
        ],
    }
    assert list(read["hosts"]) == ["gpu1", "gpu2"]
    assert read["hosts"]["gpu1"]["gpus"][0]["processes"][0]["owner"] == "ann"
    assert read["hosts"]["gpu2"]["checks"] is None
