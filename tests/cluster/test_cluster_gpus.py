"""Hosts with GPUs, as a fake nvidia-smi has it: how many processes each gets, and what is refused."""

from __future__ import annotations

import re

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster
from machines.runs import shell

SHOW = shell('echo "$LOCAL_RANK/$LOCAL_WORLD_SIZE GPUs $CUDA_VISIBLE_DEVICES"')
CHECK = ("--dry-run", "--check", "--no-check")  # torch is built for CPUs here, and a check would say so


@pytest.fixture
def train(launch: Launch) -> str:
    (launch.folder / "train.py").write_text("print('started')\n")
    return "train.py"


@pytest.fixture(autouse=True)
def eight_gpus(cluster: Cluster) -> None:
    for host in cluster:
        host.set_gpus(8)


def test_a_checked_plan_for_eight_gpus(launch: Launch, cluster: Cluster, train: str) -> None:
    done = launch.start("--gpus", "8", *CHECK, train).finish()
    assert done.exit_code == 0
    assert done.words[0] == "launch: dry run of 3 hosts x 8 GPUs = 24 ranks"
    assert re.match(
        r"launch: checked in N s: 8 x Fake GPU 80 GB, driver 999.99, python .*, torch .*, data over data1 or",
        done.words[1],
    )
    assert [line for line in done.lines if line.startswith("#")] == [
        f"# node {rank}: node{rank + 1}, ranks {8 * rank} to {8 * rank + 7}" for rank in range(3)
    ]
    for line in done.lines[1::2]:
        assert "--nproc-per-node 8 " in line
        assert f"--master-addr {cluster['node1'].address} " in line
    assert not (launch.folder / "logs" / "latest").exists()


def test_auto_takes_what_each_host_has(launch: Launch, cluster: Cluster) -> None:
    """Also where the tool complains."""
    cluster["node1"].set_gpus(8, "warns")
    cluster["node2"].set_gpus(4)
    done = launch.start(*SHOW, hosts="node[1-2]").finish()
    assert done.exit_code == 0
    assert done.words[0] == "launch: 2 hosts with 8 + 4 GPUs = 12 ranks, run RUN, logs in logs/RUN"
    assert done.words[1:4] == [
        "launch: checked in N s: 8 x Fake GPU 80 GB or 4 x Fake GPU 80 GB, driver 999.99, data over data1 or data2; "
        "2 warnings",
        "  node1: its GPU tool reports an error: WARNING: infoROM is corrupted at gpu 0000:3B:00.0; "
        "fix: look for the cause in dmesg there",
        "  node2: 4 GPUs, the others 8 GPUs; "
        "fix: pass --gpus N for equal numbers: each GPU adds a rank to the global batch",
    ]
    assert sorted(done.lines) == sorted(
        [f"[node1:{rank}] {rank}/8 GPUs " for rank in range(8)]
        + [f"[node2:{rank + 8}] {rank}/4 GPUs " for rank in range(4)]
    )
