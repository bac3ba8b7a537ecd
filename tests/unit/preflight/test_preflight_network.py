"""Who reaches whom, and interfaces that a user has named; each finding as a whole text."""

from __future__ import annotations

import pytest
from machines.example_facts import JOB, ON_CPUS, SCRIPT, facts, nodes_of, told

from launcher.hosts.host import Host
from launcher.job.facts import Probe, Probes, Route
from launcher.job.job import Job
from launcher.node.messages import NOT_TRIED
from launcher.preflight.findings import fold
from launcher.preflight.network import check, data_address, find_unreachable_master, matches

OPEN = "open TCP between the hosts"
OPEN_ALL = "open all TCP ports between the hosts: some are open, but NCCL and gloo use any free one"
REFUSED, SILENCE, ROUTELESS = "Connection refused", "no answer in 3 s", "No route to host"


def master(error=None):
    return Probe("gpu1", "10.0.0.1", 29500, is_master=True, error=error)


def ring(number, error=None):
    return Probe(f"gpu{number}", f"10.0.0.{number}", 40000 + number, is_master=False, error=error)


def tried(*probes):
    return facts(probes=Probes(probes))


def found(every_fact, job=JOB):
    return told(fold(check(nodes_of(job, every_fact))))


@pytest.mark.parametrize(
    ("every_fact", "findings"),
    [
        ([tried(master(), ring(2)), tried(master(), ring(1))], []),
        (
            [tried(master(), ring(2)), tried(master(SILENCE), ring(3)), tried(master(SILENCE), ring(1))],
            [f"problem: gpu[2-3]: can't reach node 0 (gpu1) at 10.0.0.1 port 29500: no answer in 3 s; fix: {OPEN}"],
        ),
        (
            [tried(master(), ring(2)), tried(master(NOT_TRIED), ring(1, NOT_TRIED))],
            [
                "warning: gpu2: its connections to the others could not be tested in time; "
                "fix: check its load and free memory"
            ],
        ),
        (
            [tried(master(REFUSED), ring(2)), tried(master(), ring(1))],
            [
                "problem: gpu1: can't reach itself at 10.0.0.1 port 29500: connection refused; "
                "fix: set addr= to its own address, at which it can reach itself"
            ],
        ),
        # a firewall that knows a list of ports
        (
            [tried(master(), ring(2, ROUTELESS)), tried(master(), ring(1))],
            [f"problem: gpu1: can't reach gpu2 at 10.0.0.2 port 40002: no route to host; fix: {OPEN_ALL}"],
        ),
        # a pair that is apart
        (
            [tried(master(), ring(2, SILENCE)), tried(master(SILENCE), ring(1, SILENCE))],
            [
                f"problem: gpu2: can't reach node 0 (gpu1) at 10.0.0.1 port 29500: no answer in 3 s; fix: {OPEN}",
                f"problem: gpu1: can't reach gpu2 at 10.0.0.2 port 40002: no answer in 3 s; fix: {OPEN}",
                f"problem: gpu2: can't reach gpu1 at 10.0.0.1 port 40001: no answer in 3 s; fix: {OPEN}",
            ],
        ),
        (
            [tried(master(), ring(number, "another program answers")) for number in (2, 3, 4, 5, 1)],
            [
                "problem: gpu[1-5]: can't reach a free port of the next host "
                f"(for example, gpu1 to gpu2, 10.0.0.2 port 40002: another program answers); fix: {OPEN_ALL}"
            ],
        ),
    ],
)
def test_who_reaches_whom(every_fact, findings):
    assert found(every_fact) == findings


# ---- interfaces that are named --------------------------------------------------------------------------------------

ADDRESSES = (
    ("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("docker0", "172.17.0.1"), ("lo", "::1"), ("eth0", "fd00::1"),
)  # fmt: skip
NAMES = "lo, eth0, docker0"


def with_env(name, value):
    return Job(SCRIPT, env={name: value})


@pytest.mark.parametrize(
    ("job", "findings"),
    [
        (JOB, []),
        (with_env("NCCL_SOCKET_IFNAME", "^lo,docker"), []),
        (
            with_env("NCCL_SOCKET_IFNAME", "ib0"),
            [
                "problem: gpu[1-2]: NCCL_SOCKET_IFNAME=ib0 matches no interface; "
                f"fix: unset NCCL_SOCKET_IFNAME to use each host's own interface, or choose from {NAMES}"
            ],
        ),
        (
            with_env("NCCL_SOCKET_IFNAME", "^docker"),
            [
                "problem: gpu[1-2]: NCCL_SOCKET_IFNAME=^docker allows lo, which reaches no other host; "
                "fix: exclude lo as well: ^docker,lo"
            ],
        ),
        (with_env("GLOO_SOCKET_IFNAME", "eth0,docker0"), []),
        (
            with_env("GLOO_SOCKET_IFNAME", "eth"),
            [
                "problem: gpu[1-2]: has no interface eth, named by GLOO_SOCKET_IFNAME=eth; "
                f"fix: unset GLOO_SOCKET_IFNAME to use each host's own interface, or choose from {NAMES}"
            ],
        ),
        (
            with_env("GLOO_SOCKET_IFNAME", "^docker0"),
            [
                "problem: gpu[1-2]: GLOO_SOCKET_IFNAME takes plain interface names, got '^docker0'; "
                f"fix: choose from {NAMES}"
            ],
        ),
    ],
)
def test_interfaces_that_are_not_there(job, findings):
    assert found([facts(addresses=ADDRESSES)] * 2, job) == findings


def test_loopback_is_right_for_one_machine():
    job = with_env("NCCL_SOCKET_IFNAME", "^docker")
    assert found([facts(addresses=ADDRESSES)], job) == []
    assert found([facts(addresses=ADDRESSES, route=Route("lo", "127.0.0.1"))] * 2, job) == []


# The syntax as NCCL's guide has it, "NCCL_SOCKET_IFNAME", values accepted.
@pytest.mark.parametrize(
    ("setting", "taken", "left"),
    [
        ("eth", ["eth0", "eth1", "eth"], ["ens0", "lo", "veth0"]),
        ("=eth0,eth1", ["eth0", "eth1"], ["eth2", "eth10"]),
        ("eth,ib", ["eth0", "ib1"], ["docker0"]),
        ("^docker", ["eth0", "lo"], ["docker0", "docker"]),
        ("^=docker0", ["eth0", "docker00", "docker"], ["docker0"]),
    ],
)
def test_what_nccl_takes(setting, taken, left):
    assert [name for name in taken + left if matches(setting, name)] == taken


@pytest.mark.parametrize(
    ("job", "address"),
    [
        (JOB, "10.9.0.1"),
        (with_env("NCCL_SOCKET_IFNAME", "docker"), "172.17.0.1"),
        (with_env("NCCL_SOCKET_IFNAME", "=eth0"), "10.0.0.1"),
        (with_env("NCCL_SOCKET_IFNAME", "^docker"), "10.0.0.1"),  # never lo, where nobody could reach it
        (with_env("NCCL_SOCKET_IFNAME", "ib0"), "10.9.0.1"),
        (with_env("GLOO_SOCKET_IFNAME", "docker0"), "10.9.0.1"),  # with GPUs the data is NCCL's
        (Job(SCRIPT, nproc=2, cpu=True, env={"GLOO_SOCKET_IFNAME": "docker0"}), "172.17.0.1"),
        (Job(SCRIPT, nproc=2, cpu=True, env={"GLOO_SOCKET_IFNAME": "dock"}), "10.9.0.1"),
        (Job(SCRIPT, nproc=2, cpu=True, env={"NCCL_SOCKET_IFNAME": "docker0"}), "10.9.0.1"),
    ],
)
def test_the_address_that_data_goes_to(job, address):
    assert data_address(job, facts(addresses=ADDRESSES, route=Route("eth1", "10.9.0.1"))) == address


def test_the_address_of_data_on_one_machine_and_of_a_node_without_a_route():
    named = with_env("NCCL_SOCKET_IFNAME", "lo")
    assert data_address(named, facts(addresses=ADDRESSES, route=Route("lo", "127.0.0.1"))) == "127.0.0.1"
    assert data_address(ON_CPUS, facts(route=None)) is None


# ---- a master on loopback -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "ssh_addresses", "findings"),
    [
        ("10.0.0.1", [None, "10.0.0.2", "10.0.0.3"], []),
        ("127.0.0.1", [None, "127.0.0.2", "127.0.0.3"], []),
        (
            "127.0.1.1",
            ["127.0.0.1", "10.0.0.2", None],
            [
                "n[2-3]: node 0 (n1) is known only by its loopback address 127.0.1.1\n"
                "  fix: set addr=IP in the hostfile to its address on the data network"
            ],
        ),
    ],
)
def test_a_master_on_loopback_is_for_its_own_machine(master, ssh_addresses, findings):
    hosts = [Host(f"n{number}") for number in range(1, len(ssh_addresses) + 1)]
    nodes = [facts(ssh_address=address) for address in ssh_addresses]
    assert [str(finding) for finding in find_unreachable_master(hosts, nodes, master)] == findings


def test_hosts_that_are_one_machine_reach_a_master_on_loopback():
    """As those of `launch demo`, which no SSH connects to."""
    hosts = [Host("n1", address="127.0.0.1"), Host("n2", address="127.0.0.1")]
    for machines, is_found in ((("a", "a"), False), (("a", "b"), True), ((None, None), True)):
        nodes = [facts(machine=machine, ssh_address=None) for machine in machines]
        assert bool(find_unreachable_master(hosts, nodes, "127.0.0.1")) == is_found
