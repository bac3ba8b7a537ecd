"""`launch check --gpus-under-load` on hosts with CPUs: who is slow, what ends it early, and that nothing is left."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster
from machines.processes import Process, send_signal, wait_until
from machines.runs import Running
from machines.slowness import slowed_process

# Without torchrun, whose imports would take most of the time; one thread each, or they would wait for each other.
ON_CPUS = ("--cpu", "--nproc", "1", "--start=plain", "--env", "OMP_NUM_THREADS=1")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the launcher keeps the logs of the test for as long as it lasts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def start(launch: Launch, temporary: Path, *words: str, hosts: str, load: str = "60s") -> Running:
    """Start a check, and wait until the hosts are under load."""
    running = launch.start_check(*ON_CPUS, "--gpus-under-load", load, *words, hosts=hosts)
    logs = lambda: [path.read_text() for path in temporary.glob("*/*/node_0.log")]  # noqa: E731
    assert wait_until(lambda: any("loading all CPUs" in log for log in logs())), launch.folder
    return running


def find_rank(cluster: Cluster, host: str) -> Process:
    (rank,) = [process for process in cluster.ranks() if process.host == host and "collectives" in process.command]
    return rank


def test_a_slow_host_is_named(launch: Launch, cluster: Cluster, temporary: Path) -> None:
    running = start(launch, temporary, "--json", hosts="node[1-3]", load="3s")
    with slowed_process(find_rank(cluster, "node2").pid, 0.05):
        done = running.wait()
    assert done.exit_code == 0, done
    assert done.words == ["launch: testing all hosts under load for N s"]
    found = json.loads(done.lines[0])
    assert [(load["host"], load["rank"]) for load in found["loads"]] == [("node1", 0), ("node2", 1), ("node3", 2)]
    told = [(each["severity"], each["hosts"], each["text"]) for each in found["findings"] if "median" in each["text"]]
    ((severity, hosts, text),) = told
    assert (severity, hosts) == ("warning", ["node2"])
    assert re.match(r"rank 1: \S+ GFLOP/s in fp32, \d+ % below the median \S+ of 3 x ", text)
    assert list(temporary.iterdir()) == []


def test_a_rank_that_dies_is_a_problem(launch: Launch, cluster: Cluster, temporary: Path) -> None:
    running = start(launch, temporary, hosts="node[1-2]")
    find_rank(cluster, "node2").kill()
    done = running.wait()
    assert done.exit_code == 70, done
    *_, said, fix, verdict = done.table
    assert said.startswith("! node2   under load: node2 rank 1, killed by SIGKILL: "), done
    assert (fix.strip()[:5], verdict) == ("fix: ", "1 problem would break a run")
    assert list(temporary.iterdir()) == []


def test_ctrl_c_ends_it(launch: Launch, temporary: Path) -> None:
    running = start(launch, temporary, hosts="node[1-2]")
    send_signal(running.process.pid, signal.SIGINT)
    done = running.wait()
    assert (done.exit_code, done.stdout) == (130, ""), done
    assert list(temporary.iterdir()) == []


def test_a_problem_comes_first(launch: Launch, cluster: Cluster, temporary: Path) -> None:
    """So there is no load on hosts where a run would break, or whose GPUs are claimed."""
    cluster["node2"].set_gpus(2)
    done = launch.check("--gpus", "4", "--gpus-under-load", "60s", hosts="node[1-2]")
    assert done.exit_code == 70
    assert re.search(r"^  node\[1-2\]  not tested under load: \d problems would break a run$", done.stdout, re.M), done
    assert done.stderr == ""
