"""test-distributed on hosts with networks of their own: pairs, a slow host, and the search for who fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster
from machines.patience import DEADLINE_S

from launcher.cli.test_distributed import print_culprits
from launcher.hosts.hostfiles import parse_hosts
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.transports.base import TransportSettings
from launcher.transports.ssh.fabric import FabricTransport

PORT = 40001
# Every rank meets every other one, as gloo's do, in a tenth of the time that torch takes to be imported.
MEET = """\
import os, socket, sys, time
own, peers, port = int(os.environ["RANK"]), sys.argv[2:], int(sys.argv[1])
listener = socket.create_server(("", port), backlog=len(peers))
listener.settimeout(60)
for peer in peers[own + 1:]:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((peer, port), timeout=60).close()
            break
        except ConnectionRefusedError:  # it does not listen yet
            assert time.monotonic() < deadline
            time.sleep(0.01)
for _ in peers[:own]:
    listener.accept()
"""

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


@pytest.fixture
def search(launch: Launch, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[list[str], str]]:
    """Return a function that searches node1 to node4; it returns what was said, sorted, and the verdict."""

    def make_job(names: Sequence[str], *words: str) -> Job:
        addresses = [cluster[name].address for name in names]
        program = Program(ProgramKind.COMMAND, "python3", ("-c", MEET, str(PORT), *addresses))
        return Job(program, nproc=1, timeouts=Timeouts(DEADLINE_S, stop_timeout_s=0.5))

    def call() -> tuple[list[str], str]:
        hosts = parse_hosts("node[1-4]")
        folder = launch.folder / "bisection"
        settings = TransportSettings(ssh_config=cluster.ssh_config)
        print_culprits(make_job, hosts, lambda hosts, say: FabricTransport(settings), folder, as_json=False)
        assert len(list(folder.glob("2*/run.json"))) >= 4, "the logs of the runs are kept"
        out, err = capsys.readouterr()
        first, *lines = err.splitlines()
        assert first == f"test-distributed: looking for the failing hosts; logs in {folder}"
        # Of several ranks that can't reach a host, any may be the first.
        return sorted(re.sub(r"node\d rank \d", "RANK", line) for line in lines), out

    return call


def test_a_pair_that_fails_is_found(search: Callable[[], tuple[list[str], str]], cluster: Cluster) -> None:
    """node2 and node4 are no neighbours, and neither is node 0: the checks before the whole run don't see them."""
    cluster["node4"].refuse_peer(cluster["node2"])
    cluster["node2"].refuse_peer(cluster["node4"])
    lines, verdict = search()
    reason = "FAILED (node4: can't use the address of node 0: No route to host)"
    assert lines == [
        *(f"testing node{number} alone: ok" for number in (1, 2, 3, 4)),
        "testing node[1,3-4]: ok",
        "testing node[1,3]: ok",
        "testing node[1-2]: ok",
        "testing node[1-3]: ok",
        f"testing node[2,4]: {reason}",
        f"testing node[2-4]: {reason}",
        "testing node[3-4]: ok",
    ]
    assert verdict == "verdict: node2 and node4 fail together, but each passes alone\n"
