"""Hosts that are off, frozen or behind a firewall when a run starts, or freeze before it has."""

from __future__ import annotations

from cluster_launch import Launch
from machines.cluster import Cluster, Host, configure_network
from machines.patience import slowed
from machines.runs import shell

ECHO = shell("echo started")


def power_off_long_ago(host: Host) -> None:
    """Turn it off, and let the kernel here ask for its address anew: 3 s; for one it knew it waits up to 12 s."""
    host.power_off()
    configure_network(None, f"neigh flush to {host.address}")


def test_hosts_that_can_t_be_reached(launch: Launch, cluster: Cluster) -> None:
    cluster["node2"].block(22, is_silent=False)
    cluster["node3"].block(22, is_silent=True)
    power_off_long_ago(cluster["node4"])
    cluster["node5"].freeze()
    # The kernel here takes 3 s for a host that is off, and sends one rejection a second: others had theirs before.
    done = launch.start("--connect-timeout", f"{slowed(5.0):g}", "--nproc", "1", *ECHO, hosts="node[1-5]").finish()
    assert (done.exit_code, done.stdout) == (69, "")
    network = cluster["node1"].address.rpartition(".")[0]
    assert done.words == [
        "launch: 4 hosts can't be used:",
        f"  node[2,4]: no route to {network}.[2,4] port 22",
        "    fix: check that it is on and that the network is up",
        f"  node[3,5]: {network}.[3,5] port 22 does not answer",
        "    fix: check that it is on and that no firewall blocks SSH",
        "launch: nothing was started",
    ]
