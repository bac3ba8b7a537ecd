"""Findings: what would break a run, each in one line, equal ones of several hosts folded."""

from __future__ import annotations

import re

import pytest
from machines.example_facts import BUILTIN, COMMAND, H200, JOB, SCRIPT, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Gpu, GpuProcess, Route, SetupFailure
from launcher.job.job import Activation, Job
from launcher.node import messages
from launcher.preflight.checks import find_all, find_problems
from launcher.preflight.findings import Finding, fold


def problems(job, fact, **more):
    return [str(finding) for finding in find_problems(job, [Host("gpu1", **more)], [fact])]


@pytest.mark.parametrize(
    ("job", "fact"),
    [
        (Job(SCRIPT), facts()),
        (Job(SCRIPT, nproc=2, cpu=True), facts(gpus=(), gpu_error="nvidia-smi is not there")),
        (Job(COMMAND, nproc=2), facts(gpus=(), python=None, torch_version=None)),
        (Job(BUILTIN, workdir="/data"), facts(workdir_found=False)),
        (Job(SCRIPT), facts(route=None)),
        (Job(SCRIPT, start="plain"), facts(torch_version="1.4.0")),
        (Job(SCRIPT), facts(route=Route("lo", "127.0.0.1", 1))),
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(job, fact):
    assert problems(job, fact) == []


GPU_FIX = "request fewer with --gpus (one process per GPU)"
SETUP_FIX = "test it there: it runs in the working directory, in bash, without a terminal"
NO_CONDA = "no conda on PATH, nor in ~, /opt or /usr/local; and no micromamba"


def failed(step, reason, *lines):
    """Return a node whose setup has failed, so no Python was looked for, and none is missing."""
    return facts(python=None, torch_version=None, setup_failure=SetupFailure(step, reason, lines))


@pytest.mark.parametrize(
    ("job", "fact", "finding"),
    [
        (
            Job(SCRIPT),
            facts(
                python=None, torch_version=None, pythons_tried=(("/a b/python", "not there"), ("python3", "no torch"))
            ),
            "gpu1: no Python with torch (/a b/python: not there; python3: no torch)\n"
            "  fix: install torch, or name a Python that has it with --python PATH",
        ),
        *(
            (
                Job(SCRIPT, python="/p", active_env="/env"),
                facts(python=None, torch_version=None, pythons_tried=(("/p", reason),)),
                f"gpu1: --python /p: {reason}\n  fix: {fix}",
            )
            for reason, fix in (
                (messages.NO_TORCH, "install torch for it, or name another Python"),
                (messages.NO_PROGRAM, "name one that exists there and starts"),
                ("it did not start", "name one that exists there and starts"),
            )
        ),
        (
            Job(SCRIPT),
            facts(torch_version="1.13.1+cu117"),
            "gpu1: torch 1.13.1+cu117 is too old for torchrun as launch starts it\n"
            "  fix: start without it: --start plain",
        ),
        (
            Job(SCRIPT, workdir="/data"),
            facts(workdir_found=False, script_found=False),
            "gpu1: the working directory /data doesn't exist\n"
            "  fix: send yours with --sync, or name one that exists with --workdir",
        ),
        (
            Job(SCRIPT, workdir="/data"),
            facts(script_found=False),
            "gpu1: the script train.py is not in /data\n"
            "  fix: send it with --sync, or name its directory with --workdir",
        ),
        (
            Job(SCRIPT),
            facts(gpus=(), gpu_error="nvidia-smi gave no answer in 60 s"),
            "gpu1: no GPU (nvidia-smi gave no answer in 60 s)\n"
            "  fix: run nvidia-smi there: if it hangs, look for NVRM in dmesg, and reboot",
        ),
        (
            Job(SCRIPT),
            facts(gpus=(), gpu_error="Failed to initialize NVML: Driver/library version mismatch"),
            "gpu1: no GPU (Failed to initialize NVML: Driver/library version mismatch)\n"
            "  fix: reboot that host, or reload the nvidia kernel modules; in a container, drop cuda/compat from "
            "LD_LIBRARY_PATH",
        ),
        (Job(COMMAND), facts(gpus=()), "gpu1: no GPU (nvidia-smi lists none)\n  fix: run on CPUs: --nproc N --cpu"),
        (Job(SCRIPT, nproc=9), facts(), f"gpu1: 9 GPUs requested, but it has 8\n  fix: {GPU_FIX}"),
        (
            Job(SCRIPT, nproc=9, in_script=True),
            facts(),
            "gpu1: 9 GPUs requested, but it has 8\n  fix: lower NGPUS (one process per GPU)",
        ),
        (
            Job(SCRIPT, nproc=3, env={"HIP_VISIBLE_DEVICES": "6,7"}),
            facts(visible_gpus=(6, 7)),
            f"gpu1: 3 GPUs requested, but only 2 visible (HIP_VISIBLE_DEVICES)\n  fix: {GPU_FIX}",
        ),
        (
            Job(SCRIPT),
            facts(visible_gpus=()),
            "gpu1: *_VISIBLE_DEVICES hides all 8 GPUs\n"
            "  fix: correct or unset it (the list ends at the first entry that names no GPU; "
            "a repeated entry hides all)",
        ),
        (
            Job(BUILTIN, nproc=2, may_use_cpus=True),
            facts(gpus=(), gpu_error=messages.NO_GPU_TOOL),
            f"gpu1: no GPU ({messages.NO_GPU_TOOL})\n"
            "  fix: install the driver of its GPUs; if it has none, run on CPUs: --cpu",
        ),
        (
            Job(SCRIPT),
            facts(route=Route(None, "", error="gpu9.lan: Name or service not known")),
            "gpu1: can't use the address of node 0: gpu9.lan: Name or service not known\n"
            "  fix: set addr= in the hostfile, or --master-addr",
        ),
        (
            Job(SCRIPT, master_port=29500),
            facts(route=Route(None, "", error="Address already in use")),
            "gpu1: port 29500 is taken\n  fix: omit --master-port, or find who has it with `ss -ltnp` there",
        ),
        (
            Job(SCRIPT),
            facts(route=Route(None, "10.9.9.9")),
            "gpu1: no interface has the address 10.9.9.9\n  fix: set NCCL_SOCKET_IFNAME with --env",
        ),
        (
            Job(SCRIPT),
            failed("--setup", "exit code 4", "one", "\x1b[31mtwo\x1b[0m"),
            f"gpu1: --setup failed (exit code 4):\n    one\n    [31mtwo[0m\n  fix: {SETUP_FIX}",
        ),
        (
            Job(SCRIPT),
            failed("--conda x", "exit code 127", NO_CONDA),
            f"gpu1: --conda x failed (exit code 127): {NO_CONDA}\n  fix: load conda or add it to PATH with --setup",
        ),
        (
            Job(SCRIPT),
            failed("--conda x", "exit code 1", "not found: x"),
            "gpu1: --conda x failed (exit code 1): not found: x\n"
            "  fix: name an environment, or its path, that `conda env list` shows there",
        ),
        (
            Job(SCRIPT, activation=Activation(venv="~/env")),
            facts(torch_version=None, venv_found=False, pythons_tried=(("/root/env/bin/python", "not found"),)),
            "gpu1: no virtual environment ~/env: ~/env/bin/python doesn't exist\n"
            "  fix: create it with python3 -m venv, or name another with --venv",
        ),
        (
            Job(SCRIPT, activation=Activation(conda="x")),
            facts(torch_version=None, pythons_tried=(("/root/env/bin/python", "no torch in it"),)),
            "gpu1: no Python with torch (/root/env/bin/python: no torch in it)\n"
            "  fix: install torch in that environment, or name another",
        ),
    ],
)
def test_a_finding_says_what_is_wrong_and_what_to_do(job, fact, finding):
    assert problems(job, fact) == [finding]


def test_slots_and_chosen_gpus_are_held_against_what_is_there():
    assert problems(Job(SCRIPT), facts(), slots=16) == [f"gpu1: 16 GPUs requested, but it has 8\n  fix: {GPU_FIX}"]
    assert problems(Job(SCRIPT), facts(), slots=3, gpus=(9, 7, 8)) == [
        "gpu1: has no GPU 8, 9\n  fix: choose from 0 to 7"
    ]
    assert problems(Job(SCRIPT), facts(), slots=1, gpus=(7,)) == []
    seven = facts(gpus=H200[:3] + H200[4:])
    assert problems(Job(SCRIPT), seven, gpus=(3,)) == ["gpu1: has no GPU 3\n  fix: choose from 0, 1, 2, 4, 5, 6, 7"]


def test_everything_wrong_with_a_host_is_told_at_once():
    fact = facts(gpus=(), python=None, torch_version=None, script_found=False, route=Route(None, "10.9.9.9"))
    assert [re.split(r" \(|\n", line)[0] for line in problems(Job(SCRIPT, workdir="/data"), fact)] == [
        "gpu1: no Python with torch",
        "gpu1: the script train.py is not in /data",
        "gpu1: no GPU",
        "gpu1: no interface has the address 10.9.9.9",
    ]


def test_equal_findings_are_folded_in_the_order_of_hosts():
    hosts = [Host(f"gpu{number}") for number in (1, 2, 3, 7)]
    wrong = facts(torch_version="1.13.1")
    too_old, remedy = "torch 1.13.1 is too old for torchrun as launch starts it", "start without it: --start plain"
    assert find_problems(Job(SCRIPT), hosts, [wrong, facts(gpus=()), wrong, wrong]) == [
        Finding(("gpu1", "gpu3", "gpu7"), too_old, remedy),
        Finding(("gpu2",), "no GPU (nvidia-smi lists none)", "run on CPUs: --nproc N --cpu"),
    ]
    assert str(find_problems(Job(SCRIPT), hosts[:3], [wrong] * 3)[0]) == f"gpu[1-3]: {too_old}\n  fix: {remedy}"
    assert fold([Finding(("gpu1",), too_old)] * 2) == [Finding(("gpu1",), too_old)]


# ---- all of them together -------------------------------------------------------------------------------------------


def test_the_plan_alone_is_looked_at_without_checks():
    """As with --no-check, where nothing else was asked."""
    busy = Gpu(0, "H200", 143771, "580.159", free_mib=0, processes=(GpuProcess(7, 143771, "ann", "python"),))
    fact = facts(gpus=(busy,), checks=Checks(shm_mib=64))
    assert find_problems(JOB, [Host("gpu1")], [fact]) == []
    assert len(find_all(JOB, [Host("gpu1")], [fact])) == 2


def test_the_worst_comes_first():
    fine = facts(checks=Checks())
    worse = facts(checks=Checks(shm_mib=64), script_found=False)
    hosts = [Host("gpu1"), Host("gpu2"), Host("gpu3")]
    assert told(find_all(Job(SCRIPT, workdir="/data"), hosts, [fine, worse, fine])) == [
        "problem: gpu2: the script train.py is not in /data; "
        "fix: send it with --sync, or name its directory with --workdir",
        "warning: gpu2: /dev/shm is 64 MB: data loaders with workers may fail; fix: pass --shm-size=8g to docker run",
    ]


def test_an_active_environment_that_the_ranks_do_not_run_in():
    def node(*tried, python="/usr/bin/python3"):
        return facts(python=python, pythons_tried=tried, checks=Checks())

    env, own = "/home/ann/env", "/opt/launch/bin/python3"
    mine = f"{env}/bin/python"
    every_fact = [
        node(python=mine),
        node((mine, messages.NO_PROGRAM)),
        node((mine, messages.NO_TORCH), (own, messages.NO_PROGRAM)),
        node((mine, "it did not start")),
        node((own, messages.NO_PROGRAM)),
        node((mine, messages.NO_PROGRAM)),
    ]
    hosts = [Host(f"gpu{number}") for number in range(1, 7)]
    job = Job(SCRIPT, active_env=env)
    fix = "fix: choose another with --venv, --conda or --python"
    assert told(find_all(job, hosts, every_fact)) == [
        f"warning: gpu[2,6]: this terminal's environment {env} isn't there, so ranks use /usr/bin/python3; {fix}",
        f"warning: gpu3: this terminal's environment {env} has no torch, so ranks use /usr/bin/python3; {fix}",
        f"warning: gpu4: this terminal's environment {env} has a Python that doesn't start, "
        f"so ranks use /usr/bin/python3; {fix}",
    ]
    # One that no host has is this machine's alone, as on a Mac.
    assert told(find_all(job, [hosts[1], hosts[5]], [every_fact[1], every_fact[5]])) == []
    # It is no news where none is active, or where no Python has torch, which is a problem of its own.
    assert told(find_all(Job(SCRIPT), hosts[1:], every_fact[1:])) == []
    nowhere = facts(python=None, torch_version=None, pythons_tried=((mine, messages.NO_PROGRAM),))
    assert told(find_all(job, hosts[:1], [nowhere])) == [
        f"problem: gpu1: no Python with torch ({mine}: not found); "
        "fix: install torch, or name a Python that has it with --python PATH"
    ]


def test_setups_that_fail_alike_are_one_finding() -> None:
    """Although each host has its own name and numbers in its lines."""
    hosts = [Host(f"gpu{number}") for number in range(1, 5)]
    found = [
        failed("--setup", "exit code 1", f"gpu{number}.cluster: pid {number}23 can't mount /data")
        for number in range(1, 4)
    ]
    found.append(failed("--setup", "exit code 1", "no conda"))
    assert [str(finding) for finding in find_problems(Job(SCRIPT), hosts, found)] == [
        f"gpu[1-3]: --setup failed (exit code 1): gpu1.cluster: pid 123 can't mount /data\n  fix: {SETUP_FIX}",
        f"gpu4: --setup failed (exit code 1): no conda\n  fix: {SETUP_FIX}",
    ]
