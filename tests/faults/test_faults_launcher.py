"""The launcher: stopped by a signal, killed, or frozen for longer than its hosts wait."""

from __future__ import annotations

import os
import re
import signal

from fault_launch import (
    IGNORES,
    OF_EVERY_KIND,
    SAVES,
    FaultLaunch,
    ranks,
    said,
    short_silence,
)
from machines.patience import NEVER_S
from ways import Promise, over_ways

LONG_STOP = ("--stop-timeout", f"{NEVER_S:g}")


@over_ways(Promise.SIGNAL, form=0, forms=2)
def test_sigterm_lets_the_ranks_save(launch: FaultLaunch) -> None:
    check_that_ranks_save(launch, signal.SIGTERM)


@over_ways(Promise.HANGUP)
def test_the_end_of_the_terminal_lets_the_ranks_save(launch: FaultLaunch) -> None:
    check_that_ranks_save(launch, signal.SIGHUP)


def check_that_ranks_save(launch: FaultLaunch, number: signal.Signals) -> None:
    running = launch.start_ready(*LONG_STOP, *ranks(SAVES))
    os.kill(launch.launcher().pid, number)
    done = launch.finish(running)
    assert done.exit_code == 128 + number, str(done)
    assert said(done)[2:] == [
        f"launch: {launch.stopping}, up to N s to save (Ctrl-C again: kill now)",
        f"launch: stopped by {number.name} after N s, {launch.nothing_left}",
    ]
    assert sorted(line for line in done.lines if "saved" in line) == [
        f"[{launch.name(rank)}] saved {rank}" for rank in range(4)
    ]
    assert done.record["result"]["interrupted_by"] == number


@over_ways(Promise.SIGNAL, form=1, forms=2)
def test_ctrl_c_lets_the_ranks_save_and_kills_at_once_if_it_comes_again(launch: FaultLaunch) -> None:
    running = launch.start_ready(*LONG_STOP, *ranks(SAVES, r3=IGNORES))
    launcher = launch.launcher()
    os.kill(launcher.pid, signal.SIGINT)
    running.wait_for(r"\] saved \d$", 3)
    os.kill(launcher.pid, signal.SIGINT)
    done = launch.finish(running)
    assert done.exit_code == 130, str(done)
    assert said(done)[2:] == [
        f"launch: {launch.stopping}, up to N s to save (Ctrl-C again: kill now)",
        "launch: killing all remaining processes now",
        f"launch: stopped by you after N s, {launch.nothing_left}",
    ]
    assert done.record["result"]["interrupted_by"] == signal.SIGINT


@over_ways(Promise.KILLED, form=0, forms=3)
def test_the_launcher_is_killed(launch: FaultLaunch) -> None:
    with launch.while_there_is("held"):
        launch.start_ready(*ranks(**OF_EVERY_KIND))
        launch.launcher().kill()
        launch.wait_until_nothing_runs()


@over_ways(Promise.FROZEN)
def test_the_launcher_freezes(launch: FaultLaunch) -> None:
    """The connections stay open, so the hosts' leases expire."""
    with launch.while_there_is("held"):
        running = launch.start_ready(*short_silence(), *ranks())
        launcher = launch.launcher()
        os.kill(launcher.pid, signal.SIGSTOP)
        launch.wait_until_nothing_runs()
        os.kill(launcher.pid, signal.SIGCONT)
    done = launch.finish(running)
    assert done.exit_code == 69, str(done)
    stood = r"this machine was suspended for (over )?N s, so the hosts stopped the run"
    assert re.fullmatch(rf"launch: lost \S+ \({stood}\), {launch.stopping}", said(done)[2]), str(done)
    assert said(done)[-1] == f"launch: {launch.nothing_left}, exit code 69 (launch report RUN)"
