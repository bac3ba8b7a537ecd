"""Hosts reboot, one or all at once, with and without a spare. The test is their systemd at boot."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from fault_launch import AT_GO, READY, FaultLaunch, ask, ranks, short_silence
from machines.cluster import Host
from machines.processes import wait_until
from ways import WAYS

FABRIC, SSH, DETACHED = (way for way in WAYS if way.name in ("fabric", "ssh", "detached"))

# Stand-ins for a systemd: the user lingers, and its manager finds the units that are made.
SYSTEMD = {"loginctl": "#!/bin/sh\necho Linger=yes\n", "systemctl": "#!/bin/sh\n"}
SAVES = "trap 'echo saving; sleep 300' TERM; sleep 300 & wait"
SCRIPT = f'echo "attempt $LAUNCH_ATTEMPT"; {READY}; case $LAUNCH_ATTEMPT in 4) ;; 3) {SAVES};; *) exec sleep 300;; esac'


@dataclass
class Boots:
    """Reboots hosts, and starts there what their units have."""

    started: list[tuple[Host, subprocess.Popen[bytes]]] = field(default_factory=list)
    boots: Iterator[int] = field(default_factory=count)

    def reboot(self, hosts: Sequence[Host]) -> None:
        """Let these hosts lose power at once, and come back one after the other."""
        for host in hosts:
            host.power_off()
        for host in hosts:
            host.power_on()
            host.replace_file("/proc/sys/kernel/random/boot_id", f"boot {next(self.boots)}\n")  # all have one kernel
            host.wait_for_sshd()
            for words in list_commands(host):
                argv = [*host.enter(host.folder), "env", "-i", f"HOME={host.folder}/home", *words]
                self.started.append((host, subprocess.Popen(argv, stdin=subprocess.DEVNULL)))

    def end(self) -> None:
        for _, process in self.started:
            process.kill()
            process.wait()


def list_units(host: Host) -> list[str]:
    found = (host.folder / "home" / ".config" / "systemd" / "user").glob("launch-*.service")
    return sorted(path.read_text() for path in found)


def list_commands(host: Host) -> list[list[str]]:
    lines = [line for unit in list_units(host) for line in unit.splitlines() if line.startswith("ExecStart=")]
    return [shlex.split(line.partition("=")[2]) for line in lines]


def is_ready(logs: Path, attempt: int) -> bool:
    """Tell whether the last rank has begun in this attempt."""
    return f"attempt {attempt}" in (logs / "node_1.log").read_text().rpartition("ready 3")[0]


@pytest.fixture
def boots(launch: FaultLaunch) -> Iterator[Boots]:
    """Give the hosts a systemd, as far as a run sees it."""
    with ExitStack() as ends:
        for host in launch.hosts:
            for name, script in SYSTEMD.items():
                tool = host.folder / "bin" / name
                tool.write_text(script)
                tool.chmod(0o755)
                ends.callback(tool.unlink)
        boots = Boots()
        ends.callback(boots.end)
        yield boots


@pytest.mark.parametrize("way", [DETACHED], ids=["detached"])
def test_hosts_reboot(launch: FaultLaunch, boots: Boots) -> None:
    """One that only has ranks, twice before the run has continued, then all of them, and then that of the controller.

    At last one that only has ranks, and the host of the controller while its ranks save because of that.
    """
    words = ("--restarts", "5", "--survive-reboots", *short_silence())
    done = launch.start(*words, *ranks(SCRIPT)).wait()
    assert done.exit_code == 0, str(done)
    assert "by itself after a reboot" not in done.stderr
    assert [len(list_units(host)) for host in launch.hosts] == [2, 1]
    (logs,) = launch.logs.glob("2*")
    first, second = launch.hosts[:1], launch.hosts[1:]
    for attempt, faults in enumerate([[second, second], [launch.hosts], [first], [second, first]], 1):
        for number, hosts in enumerate(faults):
            if attempt == 4 and number == 1:
                assert wait_until(lambda: "saving" in (logs / "node_0.log").read_text())
            boots.reboot(hosts)
        has_begun = partial(is_ready, logs, attempt)
        assert wait_until(has_begun), (logs / "launch.log").read_text()
    waited = ask(launch, "wait")
    assert re.search(r"^launch: finished in .*, 4 ranks succeeded, 0 processes left on 2 hosts$", waited.stderr, re.M)
    launch.wait_until_clean()
    assert [process.wait() for _, process in boots.started][-3:] == [0] * 3
    assert not any(map(list_units, launch.hosts)), "a unit is left"


@pytest.mark.parametrize(
    "way, names",
    [pytest.param(FABRIC, ["node2", "node2"], id="fabric-twice"), pytest.param(SSH, ["node1", "node2"], id="ssh-all")],
)
def test_hosts_reboot_in_the_foreground(launch: FaultLaunch, boots: Boots, names: list[str]) -> None:
    """One of them twice before the run has continued, or all of them; `launch` logs in again."""
    running = launch.start_ready("--restarts", "3", *short_silence(), *ranks(f"echo attempt $LAUNCH_ATTEMPT; {AT_GO}"))
    hosts = [launch.slurm.cluster[name] for name in names]
    for faults in [hosts] if len({*names}) > 1 else [[host] for host in hosts]:
        boots.reboot(faults)
    running.wait_for(r"\] ready \d$", 8)
    running.go()
    done = launch.finish(running)
    assert done.exit_code == 0, str(done)
    assert ", 4 ranks succeeded, 0 processes left on 2 hosts" in done.words[-1]


@pytest.mark.parametrize(
    "way, survives",
    [
        pytest.param(SSH, False, id="ssh"),
        pytest.param(DETACHED, False, id="detached"),
        pytest.param(DETACHED, True, id="detached-survives"),
    ],
)
def test_a_spare_takes_over_and_the_host_that_rebooted_is_the_next_one(
    launch: FaultLaunch, boots: Boots, survives: bool
) -> None:
    words = ("--spares", "1", "--restarts", "3", *short_silence(), *(["--survive-reboots"] if survives else []))
    running = launch.start(*words, *ranks(f"echo attempt $LAUNCH_ATTEMPT; {AT_GO}"))
    running.wait_for(r"\] ready \d$", 2)
    first = launch.hosts[0]
    is_detached = launch.way is DETACHED
    if is_detached:
        assert running.wait().exit_code == 0, str(running)
    # By default the last spare controls a detached run.
    home = launch.slurm.folder / "node2" / "home" / ".local" / "state" / "launch" / "logs"
    logs = ((home if is_detached else launch.logs) / "latest").resolve()

    def wait_for(text: str, ready: int) -> None:
        log = logs / "launch.log"
        assert wait_until(lambda: text in log.read_text()), log.read_text()
        assert wait_until(lambda: (logs / "node_0.log").read_text().count("] ready 1") == ready), log.read_text()

    boots.reboot([first])
    wait_for("launch: node2 takes the place of node1, on 1 host", 2)
    if is_detached and survives:
        wait_for("launch: node1 has rebooted and is connected again", 2)
    elif is_detached:
        assert ask(launch, "rejoin").stderr == f"launch: node1 rejoined run {logs.name}\n"
    for keeper in launch.keepers():  # of node2
        keeper.kill()
    wait_for("launch: node1 takes the place of node2, on 1 host", 3)
    running.go()
    if is_detached:
        said = ask(launch, "wait").stderr
        assert re.search(r"^launch: finished in .*, 2 ranks succeeded, 0 processes left on 1 host$", said, re.M)
    else:
        assert running.wait().exit_code == 0, str(running)
    launch.wait_until_clean()
    assert not any(map(list_units, launch.hosts)), "a unit is left"
