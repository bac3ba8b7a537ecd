"""What a node says of itself: typed where it is well formed, one error where it is not."""

from __future__ import annotations

import json

import pytest

from launcher.errors import LauncherError
from launcher.facts import Gpu, NodeFacts, Route, read_facts, read_route

MESSAGE = {
    "type": "facts",
    "hostname": "gpu1",
    "system": "linux",
    "cpu_count": 64,
    "home": "/root",
    "ssh_client": "10.0.0.9",
    "ssh_address": "10.0.0.1",
    "addresses": [["lo", "127.0.0.1"], ["eth1", "10.0.0.1"]],
    "workdir_found": True,
    "script_found": False,
    "gpus": [
        {"index": 0, "name": "H200", "memory_mib": 143771, "driver": "580.159"},
        {"index": 1, "name": "H200", "memory_mib": None, "driver": "580.159"},
    ],
    "gpu_error": None,
    "search": {
        "python": "/usr/bin/python3",
        "version": "3.11",
        "torch": "2.13.0",
        "candidate": "python3",
        "tried": [["/opt/python", "not there"]],
    },
}


def test_a_message_becomes_facts():
    assert read_facts(MESSAGE, "/tmp/run") == NodeFacts(
        folder="/tmp/run",
        hostname="gpu1",
        system="linux",
        cpu_count=64,
        home="/root",
        ssh_client="10.0.0.9",
        ssh_address="10.0.0.1",
        addresses=(("lo", "127.0.0.1"), ("eth1", "10.0.0.1")),
        workdir_found=True,
        script_found=False,
        gpus=(Gpu(0, "H200", 143771, "580.159"), Gpu(1, "H200", None, "580.159")),
        gpu_error=None,
        python="/usr/bin/python3",
        python_version="3.11",
        python_source="python3",
        torch_version="2.13.0",
        pythons_tried=(("/opt/python", "not there"),),
    )


def test_a_node_without_python_gpu_or_ssh():
    no_ssh = {"ssh_client": None, "ssh_address": None}
    bare = {**MESSAGE, **no_ssh, "gpus": [], "gpu_error": "nvidia-smi is not there", "search": {}}
    facts = read_facts(bare, "/tmp/run")
    assert (facts.gpus, facts.gpu_error) == ((), "nvidia-smi is not there")
    assert (facts.ssh_client, facts.ssh_address) == (None, None)
    assert (facts.python, facts.torch_version, facts.pythons_tried) == (None, None, ())


@pytest.mark.parametrize("name", sorted(MESSAGE.keys() - {"type"}))
def test_a_message_without_a_fact_is_refused(name):
    with pytest.raises(LauncherError) as caught:
        read_facts({key: value for key, value in MESSAGE.items() if key != name}, "/tmp/run")
    assert caught.value.message == f"its facts can't be read: KeyError({name!r})"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_count", "many"),
        ("cpu_count", None),
        ("addresses", None),
        ("addresses", [["eth1"]]),
        ("gpus", None),
        ("gpus", ["H200"]),
        ("gpus", [{"index": 0}]),
        ("gpus", [{"index": "x", "name": "", "memory_mib": 1, "driver": ""}]),
        ("search", None),
        ("search", []),
        ("search", {"tried": 3}),
        ("search", {"tried": [["only a path"]]}),
        ("cpu_count", json.loads("Infinity")),  # JSON of Python has it
        ("ssh_client", 5),
        ("ssh_address", 5),
        ("gpu_error", ["x"]),
        ("search", {"python": 5}),
    ],
)
def test_a_malformed_message_is_refused(name, value):
    with pytest.raises(LauncherError, match=r"^its facts can't be read: "):
        read_facts({**MESSAGE, name: value}, "/tmp/run")


@pytest.mark.parametrize(
    ("message", "route"),
    [
        ({"interface": "eth1", "address": "10.0.0.1", "port": 41873}, Route("eth1", "10.0.0.1", 41873)),
        ({"interface": None, "address": "10.0.0.2"}, Route(None, "10.0.0.2")),
        ({"error": "gpu9: Name or service not known"}, Route(None, None, error="gpu9: Name or service not known")),
    ],
)
def test_the_way_to_node_0(message, route):
    assert read_route(message) == route
