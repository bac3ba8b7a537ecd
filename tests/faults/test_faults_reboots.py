"""Hosts reboot, one or all at once, with and without a spare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest
from fault_launch import AT_GO, FaultLaunch, ranks, short_silence
from machines.cluster import Host
from machines.processes import wait_until
from ways import WAYS

FABRIC, SSH = (way for way in WAYS if way.name in ("fabric", "ssh"))
Reboot = Callable[[Sequence[Host]], None]


@pytest.fixture
def reboot() -> Reboot:
    """Return what lets hosts lose power at once, and come back one after the other."""
    boots = count()

    def reboot(hosts: Sequence[Host]) -> None:
        for host in hosts:
            host.power_off()
        for host in hosts:
            host.power_on()
            host.replace_file("/proc/sys/kernel/random/boot_id", f"boot {next(boots)}\n")  # all have one kernel
            host.wait_for_sshd()

    return reboot


@pytest.mark.parametrize(
    "way, names",
    [pytest.param(FABRIC, ["node2", "node2"], id="fabric-twice"), pytest.param(SSH, ["node1", "node2"], id="ssh-all")],
)
def test_hosts_reboot_in_the_foreground(launch: FaultLaunch, reboot: Reboot, names: list[str]) -> None:
    """One of them twice before the run has continued, or all of them; `launch` logs in again."""
    running = launch.start_ready("--restarts", "3", *short_silence(), *ranks(f"echo attempt $LAUNCH_ATTEMPT; {AT_GO}"))
    hosts = [launch.slurm.cluster[name] for name in names]
    for faults in [hosts] if len({*names}) > 1 else [[host] for host in hosts]:
        reboot(faults)
    running.wait_for(r"\] ready \d$", 8)
    running.go()
    done = launch.finish(running)
    assert done.exit_code == 0, str(done)
    assert ", 4 ranks succeeded, 0 processes left on 2 hosts" in done.words[-1]


@pytest.mark.parametrize("way", [pytest.param(SSH, id="ssh")])
def test_a_spare_takes_over_and_the_host_that_rebooted_is_the_next_one(launch: FaultLaunch, reboot: Reboot) -> None:
    words = ("--spares", "1", "--restarts", "3", *short_silence())
    running = launch.start(*words, *ranks(f"echo attempt $LAUNCH_ATTEMPT; {AT_GO}"))
    running.wait_for(r"\] ready \d$", 2)
    logs = (launch.logs / "latest").resolve()

    def wait_for(text: str, ready: int) -> None:
        log = logs / "launch.log"
        assert wait_until(lambda: text in log.read_text()), log.read_text()
        assert wait_until(lambda: (logs / "node_0.log").read_text().count("] ready 1") == ready), log.read_text()

    reboot([launch.hosts[0]])
    wait_for("launch: node2 takes the place of node1, on 1 host", 2)
    for keeper in launch.keepers():  # of node2
        keeper.kill()
    wait_for("launch: node1 takes the place of node2, on 1 host", 3)
    running.go()
    assert running.wait().exit_code == 0, str(running)
    launch.wait_until_clean()
