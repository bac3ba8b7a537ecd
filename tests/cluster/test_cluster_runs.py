"""Runs on hosts with networks of their own: ranges, interfaces and addresses, sizes, gloo over the bridge, exec."""

from __future__ import annotations

import sys

from cluster_launch import Launch, short_connect
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


def test_slots_of_a_hostfile(launch: Launch) -> None:
    hostfile = "node1 slots=1\nnode[2-3] slots=2  # the larger ones\n"
    done = launch.start_from(hostfile, "--cpu", *shell('echo "$LOCAL_RANK of $LOCAL_WORLD_SIZE"')).finish()
    assert done.exit_code == 0
    assert done.words[0] == "launch: 3 hosts with 1 + 2 + 2 processes = 5 ranks, run RUN, logs in logs/RUN"
    assert sorted(done.lines) == [
        "[node1:0] 0 of 1", "[node2:1] 0 of 2", "[node2:2] 1 of 2", "[node3:3] 0 of 2", "[node3:4] 1 of 2",
    ]  # fmt: skip


def test_exec_folds_what_eight_hosts_say(launch: Launch) -> None:
    script = "case $(uname -n) in node[35]) echo odd;; *) echo even; esac"
    done = launch.exec("-b", "--", script, hosts="node[1-8]")
    assert done.exit_code == 0
    assert sorted(done.stdout.split("---- ")) == ["", "node[1-2,4,6-8] ----\neven\n", "node[3,5] ----\nodd\n"]


def test_exec_goes_on_without_a_host_that_is_off(launch: Launch, cluster: Cluster) -> None:
    cluster["node4"].power_off()
    done = launch.exec(*short_connect(), "--", "uname", "-n", hosts="node[3-5]")
    assert done.exit_code == 69
    assert sorted(done.lines) == ["[node3] node3", "[node5] node5"]
    place = f"{cluster['node4'].address} port 22"  # if we wait for long, the kernel has asked for its address in vain
    assert {f"  node4: {place} does not answer", f"  node4: no route to {place}"} & {*done.words}, done


def test_the_trainer_needs_no_gpus(launch: Launch) -> None:
    """Without a script; your own script still does."""
    trainer = ("--workdir", str(launch.folder), "--python", sys.executable, "-m", "launcher.trainer")
    done = launch.start("--dry-run", "--check", *trainer, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    assert "launch: 2 hosts without GPUs, so the run uses CPUs: 1 process per host (--nproc N for more)" in done.words
    assert [line.count("--nproc-per-node 1 ") for line in done.lines if "launcher.trainer" in line] == [1, 1]
    asked = launch.start("--gpus", "8", *trainer, hosts="node[1-2]").finish()
    assert (asked.exit_code, asked.words[2]) == (70, "  node[1-2]: no GPU (neither nvidia-smi nor rocm-smi found)")
