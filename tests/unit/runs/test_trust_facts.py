"""Facts of a node that lies: they cost that node its place, and never the launcher its head."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.example_facts import BUILTIN, COMMAND

from launcher.cli import check
from launcher.errors import LauncherError
from launcher.forms import is_address
from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.job.plan import build_plan
from launcher.node import messages
from launcher.node.messages import Decoder, MalformedMessage
from launcher.preflight.checks import find_all, find_problems
from launcher.preflight.summary import summarize
from launcher.runs.inspection import Inspection
from launcher.session.allowed_messages import AllowedMessages
from launcher.session.node_state import read_facts, read_route

PROCESS = {"pid": 4411, "memory_mib": 80000, "owner": "ann", "name": "python", "mark": "20261120-091233.ab12.0"}
GPU = {
    "index": 0, "name": "H200", "memory_mib": 143771, "driver": "580.159", "free_mib": 60000,
    "compute_mode": "Exclusive_Process", "ecc_errors": 1, "processes": [PROCESS], "bus_id": "00000000:3B:00.0",
}  # fmt: skip
CHECKS = {
    "memory_free_mib": 480, "shm_mib": 64, "memlock_kib": 64,
    "disks": {"/data": 10}, "script_hash": "5f3a91", "infiniband": ["mlx5_0:1"], "code_hash": "c0de",
    "networks": [{"interface": "eth1", "network": "10.0.0.0/24", "speed_mbps": 1000}],
    "runs": [{"pid": 7, "name": "python", "mark": "20261120-091233.ab12.0", "is_owned": False}],
    "folders": [{"path": "/tmp/launch-20261119-200000-ab12cd34", "run": "20261119-200000", "files": 2}],
}  # fmt: skip
# A node with everything that the checks have a word for.
MESSAGE: dict[str, Any] = {
    "type": "facts", "hostname": "gpu1", "system": "linux", "cpu_count": 64, "home": "/root", "ssh_client": "10.0.0.9",
    "ssh_address": "10.0.0.1", "addresses": [["lo", "127.0.0.1"], ["eth1", "10.0.0.1"]], "workdir_found": True,
    "script_found": True, "gpus": [GPU, GPU | {"index": 1}], "gpu_error": "ECC", "checks": CHECKS,
    "search": {"python": "/usr/bin/python3", "version": "3.11", "torch": "2.13.0", "cuda": "12.8", "hip": None,
               "nccl": "2.27.5", "numpy": "2.3.1", "candidate": "python3", "tried": [["/opt/python", "not there"]],
               "packages": {"tqdm": "4.67.1"}},
    "setup": {"failure": {"step": "--setup", "reason": "exit code 1", "lines": ["a", "b"]}, "names": ["A"],
              "conda": "/opt/conda"},
}  # fmt: skip
ROUTED = {"type": "routed", "interface": "eth1", "address": "10.0.0.1", "port": 4000, "error": None}


def places(value: Any) -> list[tuple[Any, ...]]:
    """Return the ways to all values inside a value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((step, *way) for step, inner in steps for way in places(inner))]


def put(value: Any, way: tuple[Any, ...], new: object) -> Any:
    """Return a copy with another value there."""
    if not way:
        return new
    changed = copy.copy(value)
    changed[way[0]] = put(value[way[0]], way[1:], new)
    return changed


HOSTILE = [
    None, True, -1, 0, 10**4000, 1e308, float("inf"), float("nan"), "", "x\x1b[2J\nlaunch: all is well", "\udcff",
    "9" * 99, "a" * 5000, [], [[]], [None], ["x"] * 300, {}, {"a": 1},
]  # fmt: skip
values = st.sampled_from(HOSTILE) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
Lie = tuple[tuple[Any, ...], object]
lies = st.tuples(st.sampled_from([way for way in places(MESSAGE) if way and way != ("type",)]), values)
JOBS = [Job(BUILTIN), Job(BUILTIN, gpus=2, nproc=2), Job(COMMAND, nproc=2, cpu=True)]


def take(*headers: dict[str, Any]) -> list[dict[str, Any]]:
    """Send messages from a node to the launcher."""
    expected = AllowedMessages()
    expected.ask({"type": messages.PREPARE, "facts": True})
    expected.ask({"type": messages.ROUTE})
    stream = b"".join(json.dumps(header).encode() + b"\n" for header in headers)
    return [header for header, _ in Decoder(accept=expected.accept).feed(stream)]


def read(message: dict[str, Any]) -> NodeFacts | None:
    """Return what the launcher makes of a message, or None where it refuses that."""
    hello = {"type": "hello", "folder": "/tmp/x", "keepers": []}
    try:
        _, facts, routed = take(hello, message, ROUTED)
        return NodeFacts(**{**_fields(read_facts(facts, "/tmp/x")), "route": read_route(routed)})
    except (MalformedMessage, LauncherError) as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()
        return None


def _fields(facts: NodeFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in NodeFacts.__slots__}


HONEST = read(MESSAGE)


@given(st.lists(lies, min_size=1, max_size=3), st.sampled_from(JOBS))
def test_whatever_one_node_says_the_checks_end_in_words(
    changes: list[tuple[tuple[Any, ...], object]], job: Job
) -> None:
    message = MESSAGE
    for way, value in changes:
        if way in places(message):
            message = put(message, way, value)
    lied = read(message)
    if lied is not None:
        judge(job, lied)


def judge(job: Job, lied: NodeFacts) -> list[str]:
    """Compare a node with an honest one, and plan where that can be; return all that is said."""
    assert HONEST is not None
    hosts, facts = [Host("gpu1"), Host("gpu2")], [HONEST, lied]
    findings = find_all(job, hosts, facts)
    inspection = Inspection(tuple(hosts), tuple(facts), tuple(findings), (), 1.0)
    json.dumps(check.as_record(job, inspection), default=str)
    if not find_problems(job, hosts, facts):
        build_plan(job, hosts, facts)
    return [*check.table(job, inspection), summarize(job, facts), *(finding.one_line for finding in findings)]


@pytest.mark.parametrize("job", JOBS)
def test_no_text_of_a_node_is_more_than_a_part_of_a_line(job: Job) -> None:
    message = MESSAGE
    for way in places(MESSAGE):
        value = functools.reduce(lambda inner, step: inner[step], way, MESSAGE)
        if isinstance(value, str) and way not in [("type",), ("system",)] and not is_address(value):
            message = put(message, way, "\x1b[2J\nlaunch: all is well")
    lied = read(message)
    assert lied is not None
    said = "\n".join(judge(job, lied))
    assert "?[2J?launch: all is well" in said
    assert "\nlaunch:" not in said
    assert "\x1b" not in said


RUN = CHECKS["runs"][0]
# Where a node may name any number of things, how many of them it may name, and one of them, each another one.
LISTS = {
    "addresses": (4096, ("addresses",), lambda number: [f"eth{number}", "10.0.0.1"]),
    "gpus": (256, ("gpus",), lambda number: GPU | {"index": number, "processes": [], "compute_mode": "Prohibited"}),
    "gpus: processes": (20_000, ("gpus", 0, "processes"),
                        lambda number: PROCESS | {"pid": number, "name": f"p{number}"}),
    "pythons_tried": (64, ("search", "tried"), lambda number: [f"/opt/python{number}", "not there"]),
    "checks: runs": (20_000, ("checks", "runs"), lambda number: RUN | {"pid": number, "mark": f"{number}.ab12.0"}),
}  # fmt: skip
LINES = 16 * 256  # of all that is said of one node, as a table and line by line


@pytest.mark.parametrize(("what", "most", "way", "make"), [(what, *place) for what, place in LISTS.items()], ids=LISTS)
def test_a_list_that_no_machine_has_costs_its_node_the_place(
    what: str, most: int, way: tuple[Any, ...], make: Callable[[int], object]
) -> None:
    lied = read(put(MESSAGE, way, [make(number) for number in range(most)]))
    assert lied is not None
    assert len(judge(Job(BUILTIN, env={"GLOO_SOCKET_IFNAME": "ib0"}), lied)) < LINES
    with pytest.raises(LauncherError) as error:
        read_facts(put(MESSAGE, way, [make(0)] * (most + 1)), "/tmp/x")
    assert error.value.message == f"its facts can't be read: {what}: {most + 1} of them; at most {most} are accepted"


def test_packages_that_no_machine_has_are_refused() -> None:
    packages = {f"p{number}": "1" for number in range(5000)}
    lied = read(put(MESSAGE, ("search", "packages"), packages))
    assert lied is not None
    assert len(judge(Job(BUILTIN), lied)) < LINES
    with pytest.raises(LauncherError, match="packages: 5001 of them; at most 5000 are accepted"):
        read_facts(put(MESSAGE, ("search", "packages"), packages | {"one": "more"}), "/tmp/x")


@pytest.mark.parametrize("name", ["route", "probes", "tree", "sees_checkpoints", "claimed_gpus"])
def test_what_launch_finds_out_itself_is_not_taken_from_a_node(name: str) -> None:
    lied = read(MESSAGE | {name: "/etc", "folder": "/etc"})
    assert lied is not None
    assert lied == HONEST


@pytest.mark.parametrize("address", ["evil.example.com", ""])
@pytest.mark.parametrize("name", ["ssh_client", "ssh_address", "addresses"])
def test_an_address_is_a_number(name: str, address: str) -> None:
    """No name: whoever looks it up would ask a server of the liar's."""
    assert read(MESSAGE | {name: [["eth1", address]] if name == "addresses" else address}) is None
