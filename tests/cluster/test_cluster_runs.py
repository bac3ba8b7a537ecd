"""Runs on hosts with networks of their own: ranges, interfaces and addresses, sizes, gloo over the bridge, exec."""

from __future__ import annotations

import sys

from cluster_launch import Launch, short_connect
from machines.cluster import Cluster
from machines.runs import shell

ALL_REDUCE = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print(f"sum {total.item():g} on {os.uname().nodename} over {os.environ['GLOO_SOCKET_IFNAME']}")
dist.destroy_process_group()
"""


def test_a_run_on_a_range_of_hosts(launch: Launch) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE on $(uname -n)"'
    done = launch.start("--nproc", "2", *shell(script), hosts="node[3,1-2]").finish()
    assert done.exit_code == 0
    assert done.words == [
        "launch: 3 hosts x 2 processes = 6 ranks, run RUN, logs in logs/RUN",
        "launch: checked in N s: CPUs, data over data3 or data1 or data2",
        "launch: finished in N s, 6 ranks succeeded, 0 processes left on 3 hosts",
    ]
    assert sorted(done.lines) == sorted(
        f"[{name}:{rank}] rank {rank} of 6 on {name}"
        for first, name in ((0, "node3"), (2, "node1"), (4, "node2"))
        for rank in (first, first + 1)
    )


def test_the_plan_names_the_data_network(launch: Launch, cluster: Cluster) -> None:
    """Each host calls its interface differently, and all have a docker0 with the same address."""
    show = shell('echo "$MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"')
    done = launch.start("--nproc", "1", *show, hosts="node[2-4]").finish()
    plan = done.record["plan"]
    assert plan["master_addr"] == cluster["node2"].address
    for number, node in zip((2, 3, 4), plan["nodes"], strict=True):
        assert node["host"] == f"node{number}"
        assert node["env"]["GLOO_SOCKET_IFNAME"] == node["env"]["NCCL_SOCKET_IFNAME"] == f"data{number}"
    assert sorted(done.lines) == [
        f"[node{number}:{number - 2}] {cluster['node2'].address} data{number} data{number}" for number in (2, 3, 4)
    ]


def test_torch_over_the_bridge(launch: Launch, cluster: Cluster) -> None:
    (launch.folder / "train.py").write_text(ALL_REDUCE)
    words = ("--nproc", "1", "--cpu", "--python", sys.executable, "train.py")
    done = launch.start(*words, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    assert sorted(done.lines) == ["[node1:0] sum 3 on node1 over data1", "[node2:1] sum 3 on node2 over data2"]
    for number, node in zip((1, 2), done.record["plan"]["nodes"], strict=True):
        argv = node["argv"]
        assert argv[argv.index("--local-addr") + 1] == cluster[f"node{number}"].address
        assert argv[argv.index("--master-addr") + 1] == cluster["node1"].address


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
    assert f"  node4: {cluster['node4'].address} port 22 does not answer" in done.words


def test_the_trainer_needs_no_gpus(launch: Launch) -> None:
    """Without a script; your own script still does."""
    words = ("--workdir", str(launch.folder), "--python", sys.executable)
    small = ("--steps-per-epoch", "1", "--layers", "1", "--dim", "8", "--context", "8")
    done = launch.start(*words, "-m", "launcher.trainer", *small, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    assert (
        done.words[0] == "launch: 2 hosts without GPUs, so the run uses CPUs: 1 process per host (--nproc N for more)"
    )
    assert "[node1:0] ranks   2, 1 per node, from torchrun" in done.lines
    asked = launch.start(*words, "--gpus", "8", "-m", "launcher.trainer", hosts="node[1-2]").finish()
    assert (asked.exit_code, asked.words[2]) == (70, "  node[1-2]: no GPU (neither nvidia-smi nor rocm-smi found)")
