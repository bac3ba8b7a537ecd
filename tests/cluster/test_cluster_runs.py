"""Runs on hosts with networks of their own: ranges, interfaces and addresses, sizes, gloo over the bridge, exec."""

from __future__ import annotations

import sys

from cluster_launch import Launch
from machines.cluster import Cluster
from machines.runs import shell


def test_a_run_on_a_range_of_hosts(launch: Launch, cluster: Cluster) -> None:
    """Each host calls its interface differently, and all have a docker0 with the same address."""
    script = 'echo "rank $RANK of $WORLD_SIZE on $(uname -n): $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"'
    done = launch.start("--nproc", "2", *shell(script), hosts="node[3,1-2]").finish()
    assert done.exit_code == 0
    assert done.words == [
        "launch: 3 hosts x 2 processes = 6 ranks, run RUN, logs in logs/RUN",
        "launch: checked in N s: CPUs, data over data3 or data1 or data2",
        "launch: finished in N s, 6 ranks succeeded, 0 processes left on 3 hosts",
    ]
    first = cluster["node3"].address
    assert sorted(done.lines) == sorted(
        f"[node{number}:{rank}] rank {rank} of 6 on node{number}: {first} data{number} =data{number}"
        for place, number in enumerate((3, 1, 2))
        for rank in (2 * place, 2 * place + 1)
    )
    plan = done.record["plan"]
    assert plan["master_addr"] == first
    for number, node in zip((3, 1, 2), plan["nodes"], strict=True):
        assert node["host"] == f"node{number}"
        assert node["env"]["GLOO_SOCKET_IFNAME"] == f"data{number}"
        assert node["env"]["NCCL_SOCKET_IFNAME"] == f"=data{number}"


def test_the_trainer_needs_no_gpus(launch: Launch) -> None:
    """Without a script; your own script still does."""
    trainer = ("--workdir", str(launch.folder), "--python", sys.executable, "-m", "launcher.trainer")
    done = launch.start("--dry-run", "--check", *trainer, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    assert "launch: 2 hosts without GPUs, so the run uses CPUs: 1 process per host (--nproc N for more)" in done.words
    assert [line.count("--nproc-per-node 1 ") for line in done.lines if "launcher.trainer" in line] == [1, 1]
    asked = launch.start("--start=plain", "--gpus", "8", *trainer, hosts="node[1-2]").finish()
    assert (asked.exit_code, asked.words[2]) == (70, "  node[1-2]: no GPU (neither nvidia-smi nor rocm-smi found)")
