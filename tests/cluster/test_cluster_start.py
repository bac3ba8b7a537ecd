"""Hosts that are off, frozen or behind a firewall when a run starts, or freeze before it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_launch import Launch, short_connect, short_silence
from machines.cluster import Cluster, Host, configure_network
from machines.processes import wait_until
from machines.runs import shell

NO_ROUTE = "no route to {} port 22"
NO_ANSWER = "{} port 22 does not answer"


def power_off_long_ago(host: Host) -> None:
    """Turn it off, and let the kernel here ask for its address anew: 3 s; for one it knew it waits up to 12 s."""
    host.power_off()
    configure_network(None, f"neigh flush to {host.address}")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (lambda host: host.block(22, is_silent=False), NO_ROUTE),
        (lambda host: host.block(22, is_silent=True), NO_ANSWER),
        (power_off_long_ago, NO_ROUTE),
        (Host.freeze, NO_ANSWER),
    ],
    ids=["rejected", "dropped", "off", "frozen"],
)
def test_a_host_can_t_be_reached(launch: Launch, cluster: Cluster, block: Callable[[Host], None], reason: str) -> None:
    block(cluster["node2"])
    # A rejection is no time-out, but may take a second: the kernel sends one a second, and others had theirs before.
    words = () if reason == NO_ROUTE else short_connect()
    done = launch.start(*words, "--nproc", "1", *shell("echo started")).finish()
    assert done.exit_code == 69
    assert done.stdout == ""
    assert done.words[0] == "launch: 1 host can't be used:"
    assert done.words[1] == "  node2: " + reason.format(cluster["node2"].address)
    assert done.words[-1] == "launch: nothing was started"


def test_a_host_freezes_while_facts_are_gathered(launch: Launch, cluster: Cluster) -> None:
    host = cluster["node2"]
    host.set_gpus(8, "hangs")
    running = launch.start(*short_silence(), *short_connect(), *shell("echo started"), hosts="node[1-2]")
    assert wait_until(lambda: any("sleep 300" in process.command for process in host.processes()))
    host.freeze()
    done = running.finish()
    assert done.exit_code == 69
    assert done.words[-3:] == [
        "launch: 1 host can't be used:",
        "  node2: no heartbeat for N s",
        "launch: nothing was started",
    ]
    assert done.stdout == ""
