"""Hosts that freeze or lose power, cables that are cut, firewalls: what the launcher says and what the hosts do.

A host that nobody can tell to stop must end its share of the run by itself; the test sees all of them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from cluster_launch import CONNECT_S, LADDER_S, PROMPT_S, SILENCE_S, Launch
from machines.cluster import Cluster, Host
from machines.processes import wait_until
from machines.runs import shell

SLACK_S = 2.0  # of a busy machine
DETECTED_S = SILENCE_S + SLACK_S
# Detection, then the ladder on the others while the lost host is asked once more.
ENDED_S = SILENCE_S + LADDER_S + CONNECT_S
# The lease runs out, ranks that obey SIGTERM end, guardian and supervisor go.
SELF_CLEANED_S = SILENCE_S + PROMPT_S


@pytest.mark.parametrize(
    ("lose", "name"),
    [
        pytest.param(Host.freeze, "node1", id="freezes"),
        pytest.param(Host.power_off, "node2", id="loses power"),
        pytest.param(Host.cut, "node3", id="loses its cable"),
    ],
)
def test_a_host_is_lost(launch: Launch, cluster: Cluster, lose: Callable[[Host], None], name: str) -> None:
    running = launch.start_waiting()
    lose(cluster[name])
    lost_at = time.monotonic()
    running.wait_for(f"launch: lost {name} ")
    assert time.monotonic() - lost_at < DETECTED_S
    done = running.finish(ENDED_S)
    number = int(name[-1])
    others = {1: "node[2-3]", 2: "node[1,3]", 3: "node[1-2]"}[number]
    assert done.exit_code == 69
    assert done.words[2:] == [
        f"launch: lost {name} (no sign of life for N s), stopping 3 nodes",
        "launch: FAILED after N s",
        f"  {name} connection at HH:MM:SS:",
        "    no sign of life for N s",
        "  why: it froze, was switched off, or the network to it broke",
        "  fix: look at the machine itself; when it answers again, launch check and launch clean",
        f"  4 others followed: 2 each on {others} (stopped by us)",
        f"  all of it: logs/RUN/node_{number - 1}.log",
        f"launch: 0 processes left on 2 nodes; {name} unreachable, 2 processes may remain, exit code 69",
    ]
    assert done.record["result"]["unreachable"] == {name: 2}
    assert not cluster.ranks()
    if lose is Host.cut:
        wait_until_clean(cluster[name], SELF_CLEANED_S)
    if lose is Host.freeze:
        assert cluster[name].processes()
        cluster[name].thaw()
        wait_until_clean(cluster[name], PROMPT_S)


def wait_until_clean(host: Host, within_s: float) -> None:
    assert wait_until(lambda: not host.processes(), within_s), host.processes()


def test_every_cable_is_cut(launch: Launch, cluster: Cluster) -> None:
    """As when the launch host's own cable is."""
    running = launch.start_waiting()
    hosts = [cluster[f"node{number}"] for number in (1, 2, 3)]
    for host in hosts:
        host.cut()
    for host in hosts:
        wait_until_clean(host, SELF_CLEANED_S)
    done = running.finish(ENDED_S)
    assert done.exit_code == 69
    assert all(f"node{number} unreachable, 2 processes may remain" in done.words[-1] for number in (1, 2, 3))


def test_the_launcher_is_killed_while_a_cable_is_cut(launch: Launch, cluster: Cluster) -> None:
    running = launch.start_waiting()
    cluster["node2"].cut()
    running.process.send_signal(signal.SIGKILL)
    running.wait()
    for name, within_s in (("node1", PROMPT_S), ("node3", PROMPT_S), ("node2", SELF_CLEANED_S)):
        wait_until_clean(cluster[name], within_s)


def test_ctrl_c_while_a_host_is_frozen(launch: Launch, cluster: Cluster) -> None:
    running = launch.start_waiting()
    cluster["node2"].freeze()
    running.process.send_signal(signal.SIGINT)
    done = running.finish(ENDED_S)
    assert done.exit_code == 130
    assert done.words[2:] == [
        "launch: stopping 3 nodes, up to N s for the trainer to save (Ctrl-C again: at once)",
        "launch: stopped by you after N s, 0 processes left on 2 nodes; node2 unreachable, 2 processes may remain",
    ]


@pytest.mark.parametrize(
    ("interrupt", "resume"), [(Host.cut, Host.plug), (Host.freeze, Host.thaw)], ids=["cut", "frozen"]
)
def test_a_short_interruption_does_no_harm(
    launch: Launch, cluster: Cluster, interrupt: Callable[[Host], None], resume: Callable[[Host], None]
) -> None:
    count = 'while [ ! -e go ]; do echo "line $((number += 1))"; sleep 0.02; done; echo end'
    running = launch.start("--silence", "10", "--nproc", "1", *shell(count))
    running.wait_for(r"^\[node\d:\d\] line 5$", 3)
    interrupt(cluster["node2"])
    before = len(numbers(running.stdout, "node2:1"))
    other = len(numbers(running.stdout, "node1:0"))
    running.wait_for(rf"^\[node1:0\] line {other + 40}$")  # about a second
    assert len(numbers(running.stdout, "node2:1")) < before + 20, "it was not interrupted"
    resume(cluster["node2"])
    running.wait_for(rf"^\[node2:1\] line {before + 30}$")
    running.go()
    done = running.finish()
    assert done.exit_code == 0
    for rank, name in enumerate(["node1:0", "node2:1", "node3:2"]):
        found = numbers(done.stdout, name)
        assert found == list(range(1, len(found) + 1))
        assert done.log(rank) == [f"[{name}] line {number}" for number in found] + [f"[{name}] end"]


def numbers(text: str, name: str) -> list[int]:
    return [int(line.split()[-1]) for line in text.splitlines() if line.startswith(f"[{name}] line ")]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (lambda host: host.block(22, is_silent=False), "no route to {} port 22"),
        (lambda host: host.block(22, is_silent=True), "{} port 22 does not answer"),
        (Host.power_off, "{} port 22 does not answer"),
        (Host.freeze, "{} port 22 does not answer"),
    ],
    ids=["rejected", "dropped", "off", "frozen"],
)
def test_a_host_can_t_be_reached(launch: Launch, cluster: Cluster, block: Callable[[Host], None], reason: str) -> None:
    block(cluster["node2"])
    began_at = time.monotonic()
    done = launch.start("--nproc", "1", *shell("echo started")).finish()
    assert time.monotonic() - began_at < CONNECT_S + 2 * SLACK_S
    assert done.exit_code == 69
    assert done.stdout == ""
    assert done.words[0] == "launch: 1 host can't be used:"
    assert done.words[1] == "  node2: " + reason.format(cluster["node2"].address)
    assert done.words[-1] == "launch: nothing was started"


def test_a_host_freezes_while_facts_are_gathered(launch: Launch, cluster: Cluster) -> None:
    host = cluster["node2"]
    host.set_gpus(8, "hangs")
    running = launch.start(*shell("echo started"), hosts="node[1-2]")
    assert wait_until(lambda: any("sleep 300" in process.command for process in host.processes()), PROMPT_S)
    host.freeze()
    done = running.finish(DETECTED_S + CONNECT_S)
    assert done.exit_code == 69
    assert done.words[-3:] == [
        "launch: 1 host can't be used:",
        "  node2: no sign of life for N s",
        "launch: nothing was started",
    ]
    assert done.stdout == ""
