"""Findings: what would break a run, each in one line, equal ones of several hosts folded."""

from __future__ import annotations

import re

import pytest

from launcher.facts import Gpu, NodeFacts, Route, SetupFailure
from launcher.hosts import Host
from launcher.job import TRAINER_MODULE, Activation, Job, Program, ProgramKind
from launcher.preflight import find_problems
from launcher.preflight.findings import Finding
from launcher.preflight.network import find_unreachable_master
from launcher.preflight.summary import summarize

H200 = tuple(Gpu(index, "H200", 143771, "580.159") for index in range(8))
SCRIPT = Program(ProgramKind.SCRIPT, "train.py")
COMMAND = Program(ProgramKind.COMMAND, "hostname")
BUILTIN = Program(ProgramKind.BUILTIN, TRAINER_MODULE)


def facts(**more):
    known = {
        "folder": "/tmp/run",
        "home": "/root",
        "gpus": H200,
        "python": "/usr/bin/python3",
        "python_version": "3.11",
        "torch_version": "2.13.0",
        "route": Route("eth1", "10.0.0.1", 41873),
    }
    return NodeFacts(**(known | more))


def problems(job, fact, **more):
    return [str(finding) for finding in find_problems(job, [Host("gpu1", **more)], [fact])]


@pytest.mark.parametrize(
    ("job", "fact"),
    [
        (Job(SCRIPT), facts()),
        (Job(SCRIPT, nproc=8), facts()),
        (Job(SCRIPT, nproc=2, cpu=True), facts(gpus=(), gpu_error="nvidia-smi is not there")),
        (Job(COMMAND, nproc=2), facts(gpus=(), python=None, torch_version=None)),
        (Job(BUILTIN, workdir="/data"), facts(workdir_found=False)),
        (Job(SCRIPT), facts(route=None)),
        (Job(SCRIPT), facts(route=Route("lo", "127.0.0.1", 1))),
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(job, fact):
    assert problems(job, fact) == []


GPU_HINT = "one process a GPU; ask for fewer with --gpus"


@pytest.mark.parametrize(
    ("job", "fact", "finding"),
    [
        (Job(SCRIPT), facts(system="darwin"), "gpu1: runs darwin; a node must run Linux"),
        (
            Job(SCRIPT),
            facts(
                python=None, torch_version=None, pythons_tried=(("/a b/python", "not there"), ("python3", "no torch"))
            ),
            "gpu1: no Python with torch (/a b/python: not there; python3: no torch)\n  name it with --python PATH",
        ),
        (
            Job(SCRIPT, workdir="/data"),
            facts(workdir_found=False, script_found=False),
            "gpu1: the working folder /data is not there\n  name one that is with --workdir, or copy yours",
        ),
        (
            Job(COMMAND, workdir="/data", nproc=1),
            facts(workdir_found=False),
            "gpu1: the working folder /data is not there\n  name one that is with --workdir, or copy yours",
        ),
        (
            Job(SCRIPT, workdir="/data"),
            facts(script_found=False),
            "gpu1: the script train.py is not in /data\n  copy it there, or name the folder with --workdir",
        ),
        (
            Job(SCRIPT),
            facts(gpus=(), gpu_error="nvidia-smi gave no answer in 5 s"),
            "gpu1: no GPU (nvidia-smi gave no answer in 5 s)\n  on CPUs: --nproc N --cpu",
        ),
        (Job(COMMAND), facts(gpus=()), "gpu1: no GPU (nvidia-smi lists none)\n  on CPUs: --nproc N --cpu"),
        (Job(SCRIPT, nproc=9), facts(), f"gpu1: 9 GPUs wanted, 8 there\n  {GPU_HINT}"),
        (
            Job(SCRIPT),
            facts(route=Route(None, "", error="gpu9.lan: Name or service not known")),
            "gpu1: can't use the address of node 0: gpu9.lan: Name or service not known\n"
            "  give it with addr= in the hostfile, or --master-addr",
        ),
        (
            Job(SCRIPT, master_port=29500),
            facts(route=Route(None, "", error="Address already in use by pid 7 (python)")),
            "gpu1: port 29500 is taken by pid 7 (python)\n  end that, or name another with --master-port",
        ),
        (
            Job(SCRIPT),
            facts(route=Route(None, "10.9.9.9")),
            "gpu1: no interface has the address 10.9.9.9\n  set NCCL_SOCKET_IFNAME with --env",
        ),
    ],
)
def test_a_finding_says_what_is_wrong_and_what_to_do(job, fact, finding):
    assert problems(job, fact) == [finding]


SETUP_HINT = "it runs there in the working folder, by bash, without a terminal"
NOT_FOUND = "bash: line 1: activate: No such file or directory"
NO_CONDA = "no conda on PATH, nor in ~, /opt or /usr/local; and no micromamba"


def failed(step, reason, *lines):
    return facts(python=None, torch_version=None, setup_failure=SetupFailure(step, reason, lines))


@pytest.mark.parametrize(
    ("fact", "finding"),
    [
        (
            failed("--setup", "exit code 1", NOT_FOUND),
            f"gpu1: --setup failed (exit code 1): {NOT_FOUND}\n  {SETUP_HINT}",
        ),
        (
            failed("--setup", "exit code 4", "one", "\x1b[31mtwo\x1b[0m"),
            f"gpu1: --setup failed (exit code 4):\n    one\n    [31mtwo[0m\n  {SETUP_HINT}",
        ),
        (
            failed("--setup", "it did not end in 60 s"),
            f"gpu1: --setup failed (it did not end in 60 s)\n  {SETUP_HINT}",
        ),
        (
            failed("--conda x", "exit code 127", NO_CONDA),
            f"gpu1: --conda x failed (exit code 127): {NO_CONDA}\n  --setup can load or find it first",
        ),
        (
            failed("--conda x", "exit code 1", "not found: x", "environments there: base y"),
            "gpu1: --conda x failed (exit code 1):\n    not found: x\n    environments there: base y\n"
            "  name one of them, or its path, with --conda",
        ),
    ],
)
def test_a_setup_that_failed_is_the_only_finding(fact, finding):
    """No Python was looked for, so none is missing."""
    assert problems(Job(SCRIPT), fact) == [finding]


def test_a_setup_that_failed_on_many_hosts_is_said_once():
    hosts = [Host(f"gpu{number}") for number in range(1, 4)]
    found = find_problems(Job(SCRIPT), hosts, [failed("--setup", "exit code 1", NOT_FOUND)] * 3)
    assert [str(finding).splitlines()[0] for finding in found] == [
        f"gpu[1-3]: --setup failed (exit code 1): {NOT_FOUND}"
    ]


def test_a_virtual_environment_that_is_missing():
    job = Job(SCRIPT, activation=Activation(venv="~/env"))
    fact = facts(torch_version=None, venv_found=False, pythons_tried=(("/root/env/bin/python", "not found"),))
    assert problems(job, fact) == [
        "gpu1: no virtual environment ~/env: ~/env/bin/python is not there\n"
        "  make it with python3 -m venv, or name another with --venv"
    ]


@pytest.mark.parametrize("activation", [Activation(venv="~/env"), Activation(conda="x")])
def test_an_environment_without_torch(activation):
    fact = facts(torch_version=None, pythons_tried=(("/root/env/bin/python", "no torch in it"),))
    assert problems(Job(SCRIPT, activation=activation), fact) == [
        "gpu1: no Python with torch (/root/env/bin/python: no torch in it)\n"
        "  install it in that environment, or name another"
    ]


def test_slots_and_chosen_gpus_are_held_against_what_is_there():
    assert problems(Job(SCRIPT), facts(), slots=16) == [f"gpu1: 16 GPUs wanted, 8 there\n  {GPU_HINT}"]
    assert problems(Job(SCRIPT), facts(), slots=3, gpus=(9, 7, 8)) == ["gpu1: has no GPU 8, 9\n  it has 0 to 7"]
    assert problems(Job(SCRIPT), facts(), slots=1, gpus=(7,)) == []


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
    wrong = facts(system="darwin")
    assert find_problems(Job(SCRIPT), hosts, [wrong, facts(gpus=()), wrong, wrong]) == [
        Finding(("gpu1", "gpu3", "gpu7"), "runs darwin; a node must run Linux"),
        Finding(("gpu2",), "no GPU (nvidia-smi lists none)", "on CPUs: --nproc N --cpu"),
    ]
    assert str(find_problems(Job(SCRIPT), hosts[:3], [wrong] * 3)[0]) == (
        "gpu[1-3]: runs darwin; a node must run Linux"
    )


@pytest.mark.parametrize(
    ("master", "ssh_addresses", "findings"),
    [
        ("10.0.0.1", [None, "10.0.0.2", "10.0.0.3"], []),
        ("127.0.0.1", [None], []),
        ("127.0.0.1", [None, "127.0.0.2", "127.0.0.3"], []),
        (
            "127.0.1.1",
            ["127.0.0.1", "10.0.0.2", None],
            [
                "n[2-3]: node 0 (n1) is known by its loopback address 127.0.1.1 only\n"
                "  give its address on the data network: addr=IP in the hostfile"
            ],
        ),
    ],
)
def test_a_master_on_loopback_is_for_its_own_machine(master, ssh_addresses, findings):
    hosts = [Host(f"n{number}") for number in range(1, len(ssh_addresses) + 1)]
    nodes = [facts(ssh_address=address) for address in ssh_addresses]
    assert [str(finding) for finding in find_unreachable_master(hosts, nodes, master)] == findings


@pytest.mark.parametrize(
    ("job", "nodes", "words"),
    [
        (Job(SCRIPT), [facts()] * 3, "8 x H200 140 GB, driver 580.159, python 3.11, torch 2.13.0, data over eth1"),
        (
            Job(SCRIPT),
            [facts(), facts(gpus=H200[:4], torch_version="2.12.0", route=Route("ib0", "10.0.0.2"))],
            "8 x H200 140 GB or 4 x H200 140 GB, driver 580.159, python 3.11, torch 2.13.0 or 2.12.0, "
            "data over eth1 or ib0",
        ),
        (Job(SCRIPT, cpu=True, nproc=2), [facts()], "CPUs, python 3.11, torch 2.13.0, data over eth1"),
        (Job(COMMAND, nproc=2), [facts(gpus=())], "CPUs, data over eth1"),
        (Job(COMMAND, nproc=2), [facts(), facts(gpus=())], "8 x H200 140 GB or no GPU, driver 580.159, data over eth1"),
    ],
)
def test_a_line_says_what_all_nodes_have(job, nodes, words):
    assert summarize(job, nodes) == words
