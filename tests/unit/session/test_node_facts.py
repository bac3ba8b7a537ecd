"""What a node says of itself: typed where it is well formed, one error where it is not."""

from __future__ import annotations

import json

import pytest

from launcher.errors import LauncherError
from launcher.job.facts import Gpu, GpuProcess, NodeFacts, SetupFailure
from launcher.session.node_state import read_facts

GPU = {"index": 1, "name": "H200", "memory_mib": None, "driver": "580.159", "uuid": "GPU-1", "free_mib": 21000}
GPU |= {"compute_mode": "Default", "ecc_errors": None, "bus_id": "00000000:3B:00.0"}
GPU["processes"] = [{"pid": 4411, "memory_mib": None, "owner": "ann", "name": "python", "mark": None}]
MESSAGE = {
    "type": "facts",
    "hostname": "gpu1",
    "cpu_count": 64,
    "home": "/root",
    "ssh_client": "10.0.0.9",
    "ssh_address": "10.0.0.1",
    "addresses": [["lo", "127.0.0.1"], ["eth1", "10.0.0.1"]],
    "workdir_found": True,
    "script_found": False,
    "gpus": [GPU],
    "gpu_error": None,
    "search": {
        "python": "/usr/bin/python3",
        "version": "3.11",
        "torch": "2.13.0",
        "cuda": "12.8",
        "hip": None,
        "nccl": "2.27.5",
        "numpy": "2.3.1",
        "packages": {"numpy": "2.3.1", "mine": "1.0 (editable, a1b2c3d)"},
        "candidate": "python3",
        "tried": [["/opt/python", "not there"]],
    },
}


def test_a_message_becomes_facts():
    assert read_facts(MESSAGE, "/tmp/run") == NodeFacts(
        folder="/tmp/run",
        hostname="gpu1",
        cpu_count=64,
        home="/root",
        ssh_client="10.0.0.9",
        ssh_address="10.0.0.1",
        addresses=(("lo", "127.0.0.1"), ("eth1", "10.0.0.1")),
        workdir_found=True,
        script_found=False,
        gpus=(Gpu(**{**GPU, "processes": (GpuProcess(4411, None, "ann", "python"),)}),),
        gpu_error=None,
        python="/usr/bin/python3",
        python_version="3.11",
        python_source="python3",
        torch_version="2.13.0",
        cuda_version="12.8",
        nccl_version="2.27.5",
        numpy_version="2.3.1",
        packages={"numpy": "2.3.1", "mine": "1.0 (editable, a1b2c3d)"},
        pythons_tried=(("/opt/python", "not there"),),
    )


def test_what_became_of_a_setup():
    made = read_facts(MESSAGE | {"setup": {"failure": None, "names": ["A", "PATH"], "conda": "/opt/conda"}}, "/tmp")
    assert (made.setup_failure, made.setup_names, made.conda) == (None, ("A", "PATH"), "/opt/conda")
    failure = {"step": "--setup", "reason": "exit code 1", "lines": ["a", "b"]}
    failed = read_facts(MESSAGE | {"setup": {"failure": failure}, "venv_found": False}, "/tmp")
    assert failed.setup_failure == SetupFailure("--setup", "exit code 1", ("a", "b"))
    assert not failed.venv_found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("setup", {"failure": {"step": "x"}}),
        ("gpus", [{"index": 0}]),
        ("gpus", [GPU] * 257),
        ("checks", {"shm_mib": True}),
        ("search", {"tried": [["only a path"]]}),
        ("search", {"packages": {"numpy": "2" * 201}}),
        ("cpu_count", json.loads("Infinity")),  # JSON of Python has it
        ("visible", [0, 1, 2]),
        ("visible", [7]),
    ],
)
def test_a_malformed_message_is_refused(name, value):
    with pytest.raises(LauncherError, match=r"^its facts can't be read: "):
        read_facts({**MESSAGE, name: value}, "/tmp/run")
