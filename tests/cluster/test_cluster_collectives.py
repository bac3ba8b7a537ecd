"""test-distributed on hosts with networks of their own."""

from __future__ import annotations

import json
import re

from cluster_launch import Launch
from machines.cluster import Cluster

BACKENDS = "test-distributed: NCCL on GPUs, or gloo on CPUs if no host has GPUs"


def test_two_hosts(launch: Launch, cluster: Cluster) -> None:
    done = launch.test(1, "--max-size", "1", hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    assert done.words[0] == BACKENDS
    assert "launch: 2 hosts without GPUs, so the run uses CPUs" in done.words
    assert re.fullmatch(r"\[node1:0\] initialized in \d+\.\d s \(2 ranks on 2 hosts\)", done.lines[0])
    pair, load, passed = [line for line in done.lines if line.startswith("[")][-3:]
    assert re.fullmatch(r"\[node1:0\] node1 <-> node2   latency \S+ [mu]s, \S+ [MG]B/s", pair)
    assert load == "[node1:0] loading all CPUs for 1 s"
    assert passed == "[node1:0] all 14 checks passed with 2 ranks on 2 hosts (gloo, cpu)"
    figures = r"node\[1-2\]: 2 x .* under load: \S+ GFLOP/s in fp32 \(\S+ to \S+\), \S+ GB/s in memory \(\S+ to \S+\)"
    assert re.fullmatch(figures, done.lines[-1])
    results = json.loads((done.logs / "files" / "node_0" / "results.json").read_text())
    assert results["hosts"] == ["node1", "node2"]
    assert [(pair["first"], pair["second"]) for pair in results["pairs"]] == [(0, 1)]
    for number, node in zip((1, 2), done.record["plan"]["nodes"], strict=True):
        argv = node["argv"]
        assert argv[argv.index("--local-addr") + 1] == cluster[f"node{number}"].address
        assert argv[argv.index("--master-addr") + 1] == cluster["node1"].address
