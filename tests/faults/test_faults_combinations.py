"""Faults at awkward moments of a detached run: a row for each moment, with what happens then, and what must follow."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from fault_launch import AT_GO, OBEYS, READY, FaultLaunch, ask, find_process, ranks, said, short_silence
from machines.cluster import Host
from machines.processes import CENSUS_POLL_S, read_name, wait_until
from machines.runs import Running
from machines.slurm import LOGIN
from ways import WAYS

# The least time for which the hosts wait for the launch host, which is what the rows before `go` take.
CONNECT = ("--connect-timeout", "10")
RESTARTS = ("--restarts", "2")
# A rank of the first attempt does what the test asks for; those of the next ones are well.
WELL = f"[ $LAUNCH_ATTEMPT = 0 ] || {{ {READY}; exit 0; }}"
FAILS_ONCE = f"{WELL}; {AT_GO}; exit 7"
WAITS_FOR_GO = f"{AT_GO}; exit 0"
CONTINUES = r"run \S+ continues without this terminal"

Start = Callable[[FaultLaunch, tuple[str, ...]], Running]
Step = Callable[[FaultLaunch], None]
Follows = Callable[[FaultLaunch, Running], None]


@dataclass(frozen=True, slots=True)
class Combination:
    """One row: options and ranks, the moment, what happens then, and what must follow."""

    words: tuple[str, ...]
    phase: Start
    fault: Step
    follows: Follows


def told(launch: FaultLaunch) -> str:
    """Return what the controller has said."""
    log = launch.logs / "latest" / "launch.log"
    return log.read_text() if log.exists() else launch.started[-1].stderr


def names(host: Host) -> list[str]:
    return [read_name(process.pid) for process in host.processes()]


# ---- the moment: seen, never waited for by the clock --------------------------------------------------------------


def planting(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The controller and an agent are there, which can't reach each other: so there is no `go`."""
    launch.last.drop_from(launch.hosts[0])
    running = launch.start(*words)
    assert wait_until(lambda: "launch-agent" in names(launch.last) and "launch" in names(launch.hosts[0]))
    return running


def starting(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """All ranks run, and the terminal still waits whether they live."""
    return launch.start_ready(*words)


def settled(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The run continues without its terminal."""
    running = launch.start(*words)
    assert running.wait().exit_code == 0, str(running)
    assert re.search(CONTINUES, running.stderr)
    return running


def watched(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """Someone attaches to it, waits for it, and reads on in its logs."""
    running = launch.start_ready(*words)
    for command in (("attach",), ("wait",), ("logs", "-f")):
        launch.slurm.start("launch", *command, cwd=launch.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: names(launch.hosts[0]).count("launch") == 4)
    return running


# ---- what happens then --------------------------------------------------------------------------------------------


def cut_login(launch: FaultLaunch) -> None:
    """The machine of the terminal has lost its network, or its power: no host hears of it."""
    launch.slurm.cluster[LOGIN].cut()


def cut_last(launch: FaultLaunch) -> None:
    launch.last.cut()


def cut_controller(launch: FaultLaunch) -> None:
    launch.hosts[0].cut()


def kill_agent(launch: FaultLaunch) -> None:
    find_process(launch.last, "launch-agent").kill()


def remove_code(launch: FaultLaunch) -> None:
    """A cleaner of caches removes the controller's code, and then a rank fails."""
    shutil.rmtree(launch.logs.parents[3] / ".cache" / "launch" / "code")
    launch.started[-1].go()


# ---- what must follow ---------------------------------------------------------------------------------------------


def all_ends_and_is_named_meanwhile(launch: FaultLaunch, running: Running) -> None:
    """`launch clean`, typed where the controller is, names what is there and leaves it alone, whoever started it."""
    words = ("launch", "clean", "--hosts", "node1", "--ssh-config", str(launch.slurm.cluster.ssh_config))
    done = launch.slurm.run(*words, host="node1")
    assert re.search(r"node1: 2 processes control or start a run \(left alone: ", done.stdout + done.stderr), done
    assert wait_until(lambda: not any(map(names, launch.hosts)), poll_s=CENSUS_POLL_S), list(map(names, launch.hosts))
    assert not list(launch.logs.glob("2*")), "a run that never started leaves no logs"
    running.process.kill()


def the_start_fails(launch: FaultLaunch, running: Running) -> None:
    done = running.wait()
    assert done.exit_code == 69, str(done)
    assert "launch: no restart: a host was lost before the run could continue without its terminal" in said(done)
    launch.last.heal()
    launch.wait_until_nothing_runs()


def it_comes_back(launch: FaultLaunch, running: Running) -> None:
    """In a second attempt, on all hosts, and nobody is remembered as lost."""
    assert wait_until(lambda: "restarting" in told(launch)), told(launch)
    for host in launch.slurm.cluster:
        host.heal()
    running.go()
    ask(launch, "wait")
    assert re.search(r"launch: finished in .* succeeded, 0 processes left on", told(launch)), told(launch)
    assert not re.search("without node|takes the place", told(launch)), told(launch)


def nobody_is_blamed(launch: FaultLaunch, running: Running) -> None:
    it_comes_back(launch, running)
    assert '"what": "lost"' not in (launch.logs.parent / "hosts.json").read_text()


def only_the_controller_stays(launch: FaultLaunch, running: Running) -> None:
    """Of the four on its host."""
    assert wait_until(lambda: names(launch.hosts[0]).count("launch") == 1, poll_s=CENSUS_POLL_S)
    launch.slurm.cluster[LOGIN].plug()
    ask(launch, "stop", "--now")
    running.process.kill()


# ---- the table ----------------------------------------------------------------------------------------------------

ROWS = {
    "planting-power": Combination(
        (*CONNECT, *RESTARTS, *ranks()), planting, cut_login, all_ends_and_is_named_meanwhile
    ),
    "starting-host-cut": Combination(
        (*RESTARTS, *short_silence(), *ranks()), starting, cut_last, the_start_fails
    ),
    "starting-agent-killed": Combination((*RESTARTS, *ranks()), starting, kill_agent, the_start_fails),
    "starting-code-removed": Combination(
        (*RESTARTS, *ranks(f"{WELL}; {OBEYS}", r3=FAILS_ONCE)), starting, remove_code, it_comes_back
    ),
    "settled-host-cut": Combination(
        (*RESTARTS, *short_silence(), *ranks(WAITS_FOR_GO)), settled, cut_last, nobody_is_blamed
    ),
    "settled-agent-killed": Combination((*RESTARTS, *ranks(WAITS_FOR_GO)), settled, kill_agent, it_comes_back),
    "settled-controller-cut": Combination(
        ("--hosts", "node1,node2,login", "--controller", "node1", "--min-nodes", "1", *RESTARTS, *short_silence(),
         *ranks(WAITS_FOR_GO)),
        settled, cut_controller, nobody_is_blamed,
    ),
    "watched-terminal-cut": Combination(ranks(), watched, cut_login, only_the_controller_stays),
}  # fmt: skip


@pytest.mark.parametrize("way", [way for way in WAYS if way.name == "detached"], ids=["detached"])
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_a_fault_at_an_awkward_moment(launch: FaultLaunch, row: Combination) -> None:
    running = row.phase(launch, tuple(row.words))
    row.fault(launch)
    row.follows(launch, running)
    launch.wait_until_clean()
