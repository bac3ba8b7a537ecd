"""Faults between the launcher and its hosts: broken connections, pulled cables, frozen hosts, absent hosts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

from fault_launch import (
    READY,
    FaultLaunch,
    ranks,
    said,
    short_connect,
    short_silence,
)
from machines.cluster import Host
from machines.processes import CENSUS_POLL_S, wait_until
from machines.runs import Running
from machines.slurm import LOGIN, NODES
from ways import Cut, Promise, over_cuts, over_ways


@over_cuts()
def test_a_connection_breaks(launch: FaultLaunch, cut: Cut) -> None:
    """The host itself is healthy, and another connection confirms that nothing is left there."""
    running = launch.start_ready(*ranks())
    cut.make(launch.slurm)
    done = launch.finish(running)
    assert done.exit_code == 69, str(done)
    assert re.fullmatch(rf"launch: lost {cut.host} \({cut.told}\), {launch.stopping}", said(done)[2]), str(done)
    assert said(done)[-1] == f"launch: {launch.nothing_left}, exit code 69 (launch report RUN)"


@over_ways(
    Promise.LOST,
    "lose",
    {"loses its cable": (Host.cut,), "freezes": (Host.freeze,), "loses power": (Host.power_off,)},
)
def test_a_host_is_lost(launch: FaultLaunch, lose: Callable[[Host], None]) -> None:
    running = launch.start_ready(*short_silence(), *short_connect(), *ranks())
    lose(launch.last)
    done = launch.finish(running)
    assert done.exit_code == 69, str(done)
    assert said(done)[2:] == [
        "launch: lost node2 (no heartbeat for N s), stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node2 connection at HH:MM:SS:",
        "    no heartbeat for N s",
        "  why: the host froze, was switched off, or the network to it failed",
        "  fix: check the machine itself; when it responds again, run launch check and launch clean",
        "  full log: logs/RUN/node_1.log",
        "launch: 0 processes left on 1 host; node2 unreachable, 2 processes may remain, exit code 69 (launch report "
        "RUN)",
    ]
    assert done.record["result"]["unreachable"] == {"node2": 2}
    if lose is Host.freeze:
        assert launch.last.processes()
        launch.last.thaw()
        assert wait_until(lambda: not launch.last.processes(), poll_s=CENSUS_POLL_S), launch.last.processes()
        launch.forget_folder(launch.last)


@over_ways(Promise.ALONE)
def test_every_cable_is_out(launch: FaultLaunch) -> None:
    """As if the launch host's cable were pulled: the hosts must stop by themselves."""
    running = launch.start_ready(*short_silence(), *short_connect(), *ranks())
    for name in NODES:
        launch.slurm.cluster[name].cut()
    for host in launch.hosts:
        assert wait_until(lambda host=host: not host.processes(), poll_s=CENSUS_POLL_S), host.processes()
    if launch.way.controller != LOGIN:  # the terminal learns it from TCP, half a minute later
        return
    done = running.wait()
    assert done.exit_code == 69, str(done)
    assert all(f"{name} unreachable, 2 processes may remain" in said(done)[-1] for name in NODES), str(done)


@over_ways(
    Promise.LOST, "lose, find", {"cut": (Host.cut, Host.plug), "frozen": (Host.freeze, Host.thaw)}, form=3, forms=5
)
def test_ctrl_c_while_a_host_is_lost(
    launch: FaultLaunch, lose: Callable[[Host], None], find: Callable[[Host], None]
) -> None:
    """The lost host stops its ranks when it can be reached again, or earlier."""
    with launch.while_there_is("held"):
        running = launch.start_ready(*short_silence(), *short_connect(), *ranks())
        lose(launch.last)
        os.kill(launch.launcher().pid, signal.SIGINT)
        running.wait_for("^launch: stopped by you")
        assert not launch.ranks()
        find(launch.last)
        launch.wait_until_nothing_runs()
        launch.forget_folder(launch.last)
    done = launch.finish(running)
    assert done.exit_code == 130, str(done)
    assert said(done)[2:] == [
        "launch: stopping the run on 2 hosts, up to N s to save (Ctrl-C again: kill now)",
        "launch: stopped by you after N s, 0 processes left on 1 host; node2 unreachable, 2 processes may remain",
    ]


@over_ways(Promise.LOST, "pause, resume", {"cut": (Host.cut, Host.plug), "frozen": (Host.freeze, Host.thaw)})
def test_a_short_pause_does_no_harm(
    launch: FaultLaunch, pause: Callable[[Host], None], resume: Callable[[Host], None]
) -> None:
    """The pause takes half a second or more, while the other host continues; no line is lost or repeated."""
    count = f"{READY}; until [ -e go ]; do echo $((n += 1)); sleep 0.02; done"
    running = launch.start_ready(*ranks(r0=count, r3=count))
    pause(launch.last)
    assert wait_until(lambda: only_one_counts(running)), "there was no pause"
    before = last_number(running.stdout, "node2:3")
    resume(launch.last)
    running.wait_for(rf"^\[node2:3\] {before + 20}$")
    running.go()
    os.kill(launch.launcher().pid, signal.SIGINT)
    done = launch.finish(running)
    for node, name in enumerate(("node1:0", "node2:3")):
        for lines in (done.lines, done.log(node)):
            found = [line for line in lines if re.fullmatch(rf"\[{name}\] \d+", line)]
            assert found == [f"[{name}] {number}" for number in range(1, len(found) + 1)]


def only_one_counts(running: Running) -> bool:
    """Tell whether rank 3 prints nothing while rank 0 counts on by 20; earlier output of rank 3 may still arrive."""
    before = last_number(running.stdout, "node2:3")
    running.wait_for(rf"^\[node1:0\] {last_number(running.stdout, 'node1:0') + 20}$")
    return last_number(running.stdout, "node2:3") == before


def last_number(text: str, name: str) -> int:
    return max(map(int, re.findall(rf"^\[{name}\] (\d+)$", text, re.MULTILINE)), default=0)


@over_ways(Promise.ABSENT)
def test_a_host_is_not_there(launch: FaultLaunch) -> None:
    with launch.while_there_is("early"):
        running = launch.start(*short_connect(), *ranks())
        launch.wait_for_the_typist()
        launch.slurm.cluster["node2"].power_off()
    done = running.wait()
    assert (done.exit_code, done.stdout) == (69, ""), str(done)
    words = said(done)
    assert words[0] == "launch: 1 host can't be used:"
    assert re.fullmatch(f"  node2: {launch.way.never_there}", words[1])
    assert words[-1] == "launch: nothing was started"
    launch.wait_until_clean()
