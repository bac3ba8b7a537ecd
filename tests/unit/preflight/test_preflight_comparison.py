"""Nodes against each other: who differs, from whom, and how much that matters; each finding as a whole text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines.example_facts import COMMAND, H200, JOB, ON_CPUS, SCRIPT, checked, facts, nodes_of, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Network, Route
from launcher.job.job import Job
from launcher.preflight.comparison import check, check_machines
from launcher.preflight.findings import CheckedHost, fold
from launcher.preflight.summary import summarize

APART = "install the same one everywhere: they can't train together"
NEAR = "install the same one everywhere: results may differ"
COUNTS = "pass --gpus N for equal numbers: each GPU adds a rank to the global batch"


def found(every_fact, job=JOB):
    return told(fold(check(nodes_of(job, every_fact))))


def torch(version):
    return facts(torch_version=version)


def python(version):
    return facts(python_version=version)


def script(found):
    return checked(script_hash=found)


def gpus(count, **more):
    return facts(gpus=tuple(replace(gpu, **more) for gpu in H200[:count]))


@pytest.mark.parametrize(
    ("every_fact", "findings"),
    [
        ([facts()] * 3, []),
        # torch
        ([torch("2.13.0"), torch("2.12.0")], [f"problem: gpu2: torch 2.12, the others 2.13; fix: {APART}"]),
        (
            [torch("2.13.0+cu130"), torch("2.13.0+cu126"), torch("2.13.0+cu130")],
            [f"warning: gpu2: torch 2.13.0+cu126, the others 2.13.0+cu130; fix: {NEAR}"],
        ),
        (
            [torch("2.11.0"), torch("2.13.0"), torch("2.12.0"), torch("2.13.0"), torch("2.13.0")],
            [
                f"problem: gpu1: torch 2.11, most 2.13; fix: {APART}",
                f"problem: gpu3: torch 2.12, most 2.13; fix: {APART}",
            ],
        ),
        (
            [torch(f"2.{minor}.0") for minor in range(1, 9)],
            ["problem: gpu[1-8]: torch 2.1 on gpu1, 2.2 on gpu2, 2.3 on gpu3, 2.4 on gpu4, 2.5 on gpu5 "
             f"and 3 more values; fix: {APART}"],
        ),
        ([torch("2.13.0"), torch(None)], []),  # that one has a finding of its own
        # Python
        (
            [python("3.11.4"), python("3.12.1"), python("3.11.4")],
            [
                "warning: gpu2: python 3.12, the others 3.11; "
                "fix: install the same one everywhere: pickles and wheels may be incompatible"
            ],
        ),
        # the script
        (
            [script("5f3a91c0ffee"), script("12ab34cd"), script("5f3a91c0ffee"), script(None)],
            [
                "problem: gpu2: the script's hash is 12ab34, the others 5f3a91; "
                "fix: copy the same script to all hosts"
            ],
        ),
        (
            [checked(code_hash="5f3a91c0ffee"), checked(code_hash="12ab34cd"), checked(code_hash="5f3a91c0ffee"),
             checked(code_hash=None)],
            [
                "warning: gpu2: the hash of its Python files is 12ab34, the others 5f3a91; "
                "fix: copy the same code to all hosts (rsync -rcni lists the files that differ), or pass --sync"
            ],
        ),
        # GPUs
        (
            [gpus(8), gpus(4), gpus(8), gpus(4), gpus(2)],
            [f"warning: gpu[1-5]: 8 GPUs on gpu[1,3], 4 GPUs on gpu[2,4] and 2 GPUs on gpu5; fix: {COUNTS}"],
        ),
        ([gpus(4), gpus(8)], [f"warning: gpu2: 8 GPUs, the others 4 GPUs; fix: {COUNTS}"]),  # the first is usual
        ([gpus(4), gpus(8), gpus(8), gpus(4)], [f"warning: gpu[2-3]: 8 GPUs, the others 4 GPUs; fix: {COUNTS}"]),
        ([gpus(8), gpus(0)], []),  # that one has a finding of its own
        (
            [gpus(8), gpus(8, name="A100")],
            ["warning: gpu2: A100, the others H200; fix: leave out the slower ones: they slow down all"],
        ),
        (
            [gpus(8, driver="535.1"), gpus(8), gpus(8, driver="535.1")],
            ["warning: gpu2: driver 580.159, the others 535.1; fix: update it: NCCL may refuse to start"],
        ),
        (
            [checked(infiniband=("mlx5_0:1",)), checked(infiniband=("mlx5_1:1",)), checked()],
            [
                "warning: gpu3: no InfiniBand, the others InfiniBand; "
                "fix: run ibstat there: NCCL falls back to TCP on all hosts"
            ],
        ),
        (
            [facts(), facts(cuda_version="12.6", nccl_version="2.27.3")],
            [
                "warning: gpu2: CUDA 12.6, the others 13.0; fix: install the same torch build everywhere",
                "problem: gpu2: NCCL 2.27.3, the others 2.28.9; "
                "fix: install the same one everywhere: NCCL refuses to start with different ones",
            ],
        ),
        # numpy
        ([facts(numpy_version="2.1.0"), facts(), facts(numpy_version="1.26.4")],
         ["problem: gpu3: numpy 1, the others 2; "
          "fix: install the same one everywhere: pickles and wheels may be incompatible"]),
        ([facts(numpy_version="2.1.0"), facts(numpy_version="2.3.1")],
         [f"warning: gpu2: numpy 2.3, the others 2.1; fix: {NEAR}"]),
        ([facts(packages={"numpy": "2.1.0"}), facts(numpy_version="2.1.3")], []),
    ],
)  # fmt: skip
def test_who_differs(every_fact, findings):
    assert found(every_fact) == findings


@pytest.mark.parametrize(
    ("job", "every_fact"),
    [
        (Job(SCRIPT, nproc=4), [gpus(8), gpus(4)]),  # a number that is wanted is there, or refused elsewhere
        (ON_CPUS, [gpus(8), gpus(4, driver="535.1")]),
        (Job(COMMAND, nproc=1), [torch("2.12.0"), torch("2.13.0")]),
        (ON_CPUS, [checked(infiniband=("mlx5_0:1",)), checked()]),
    ],
)
def test_what_the_job_does_not_use_is_not_compared(job, every_fact):
    assert found(every_fact, job) == []


def test_gpus_that_were_chosen_are_not_counted():
    hosts = [Host("gpu1"), Host("gpu2", gpus=(0, 1)), Host("gpu3", slots=2)]
    fact_lists = [gpus(8), gpus(4), gpus(2)]
    assert list(check([CheckedHost(JOB, host, fact) for host, fact in zip(hosts, fact_lists, strict=True)])) == []


# ---- networks -------------------------------------------------------------------------------------------------------

SLOW = Network("eth0", "10.0.0.0/24", 1000)
FAST = Network("ib0", "10.1.0.0/24", 100000)
DOCKER = Network("docker0", "172.17.0.0/16", 400000)
ADDR = "set addr= in the hostfile to the hosts' addresses on that network"


ALIAS = "gpu2: it is the same machine as gpu1"
TWICE = f"problem: {ALIAS}, and its ranks would use the same GPUs; fix: name each machine once, or give each name "
TWICE += "other GPUs with --include"


@pytest.mark.parametrize(
    ("job", "hosts", "machines", "findings"),
    [
        (JOB, [{}, {}], ["a", "b"], []),
        (JOB, [{}, {}], [None, None], []),
        (JOB, [{}, {}], ["a", "a"], [TWICE]),
        (Job(SCRIPT, nproc=2), [{"gpus": (0, 1)}, {"gpus": (1, 2)}], ["a", "a"], [TWICE]),
        (
            JOB,
            [{"gpus": (0, 1)}, {"gpus": (2, 3)}],
            ["a", "a"],
            [f"warning: {ALIAS}; fix: name each machine once"],
        ),
        (ON_CPUS, [{}, {}], ["a", "a"], [f"warning: {ALIAS}; fix: name each machine once"]),
        (
            ON_CPUS,
            [{}, {"is_spare": True}],
            ["a", "a"],
            [f"problem: {ALIAS}, so it can't be its spare; fix: name another machine as the spare"],
        ),
    ],
)
def test_two_names_of_one_machine(job, hosts, machines, findings):
    nodes = [
        CheckedHost(job, Host(f"gpu{number}", **more), facts(machine=machine, ssh_address=f"10.0.0.{number}"))
        for number, (more, machine) in enumerate(zip(hosts, machines, strict=True), 1)
    ]
    assert told(check_machines(nodes)) == findings


def test_hosts_on_loopback_are_meant_to_be_one_machine():
    every_fact = [facts(machine="a", ssh_address=address) for address in ("127.0.0.1", "127.0.0.2")]
    assert not [*check_machines(nodes_of(JOB, every_fact))]
    demo = [Host(name, address="127.0.0.1") for name in ("node1", "node2")]
    assert not [*check_machines([CheckedHost(JOB, host, facts(machine="a", ssh_address="10.0.0.1")) for host in demo])]


def networks(*entries, over="eth0", **more):
    return facts(route=Route(over, "10.0.0.1"), checks=Checks(networks=entries, **more))


FASTER = f"data goes over 1 Gb/s, but all hosts share 10.1.0.0/24 at 100 Gb/s (ib0); fix: {ADDR}"


@pytest.mark.parametrize(
    ("every_fact", "findings"),
    [
        ([networks(SLOW, FAST), networks(FAST, SLOW)], [f"warning: gpu[1-2]: {FASTER}"]),
        ([networks(SLOW, FAST), networks(SLOW)], []),
        ([networks(replace(SLOW, speed_mbps=None), FAST)] * 2, []),  # nobody knows how slow it is
        ([networks(SLOW, FAST, over="ib0"), networks(SLOW, FAST, over="ib0")], []),
        ([networks(SLOW, DOCKER), networks(SLOW, DOCKER)], []),  # the same addresses on each, and no way between them
        ([networks(FAST, over="eth0"), networks(FAST, over="eth0")], []),  # nobody knows how fast the one used is
        (  # what is eth0 on one node is ib0 on the other
            [
                networks(SLOW, FAST),
                networks(replace(SLOW, interface="ib0"), Network("eth0", FAST.network, 25000), over="ib0"),
            ],
            [
                "warning: gpu[1-2]: data goes over 1 Gb/s, but all hosts share 10.1.0.0/24 at 25 Gb/s (eth0, ib0)"
                f"; fix: {ADDR}"
            ],
        ),
    ],
)  # fmt: skip
def test_a_faster_network(every_fact, findings):
    assert found(every_fact) == findings


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_who_has_chosen_a_network_is_not_told_of_another(name):
    pair = [networks(SLOW, FAST), networks(SLOW, FAST)]
    assert found(pair, Job(SCRIPT, env={name: "eth0"})) == []
    hosts = [Host("gpu1", address="10.0.0.1"), Host("gpu2")]
    assert list(check([CheckedHost(JOB, host, fact) for host, fact in zip(hosts, pair, strict=True)])) == []


def test_with_infiniband_the_data_takes_another_way():
    pair = [networks(SLOW, FAST, infiniband=("mlx5_0:1",))] * 2
    assert found(pair) == []
    assert found(pair, ON_CPUS) == [f"warning: gpu[1-2]: {FASTER}"]


def test_a_lost_gpu_has_no_name_to_compare():
    lost = replace(H200[0], name="[GPU is lost]", memory_mib=None, fault="GPU is lost")
    every_fact = [facts(), facts(gpus=(lost, *H200[1:]))]
    assert found(every_fact) == []
    assert summarize(JOB, every_fact).startswith("8 x H200 140 GB, driver")
