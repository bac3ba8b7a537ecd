"""A run with --restarts comes back over every way, and never runs twice at the same time."""

from __future__ import annotations

import os
import signal

from fault_launch import AT_GO, FAILS, OBEYS, OF_EVERY_KIND, READY, FaultLaunch, ranks, said, short_silence
from machines.cluster import Host
from machines.runs import Done
from ways import Promise, over_ways

# Ranks of the first attempt do what the test asks for, those of the next ones are well.
WELL = f"[ $LAUNCH_ATTEMPT = 0 ] || {{ {READY}; exit 0; }}"


def first(script: str) -> str:
    return f"{WELL}; {script}"


def comes_back(done: Done, launch: FaultLaunch) -> None:
    assert done.exit_code == 0, str(done)
    assert f", 4 ranks succeeded, {launch.nothing_left}" in said(done)[-1]
    attempts = done.record["attempts"]
    assert [attempt["outcome"] for attempt in attempts[1:]] == ["succeeded"], str(done)
    assert attempts[0]["ended_at"] <= attempts[1]["began_at"]
    assert attempts[0]["master_port"] != attempts[1]["master_port"]


@over_ways(Promise.RESTART, form=0, forms=2)
def test_a_rank_fails_and_the_run_comes_back(launch: FaultLaunch) -> None:
    """Of the other ranks, one obeys, one ignores all signals but SIGKILL, and one has hidden children."""
    others = {name: first(script) for name, script in OF_EVERY_KIND.items()}
    running = launch.start_ready("--restarts", "1", *ranks(first(OBEYS), **others, r3=first(FAILS)))
    running.go()
    comes_back(launch.finish(running), launch)


@over_ways(Promise.RESTART, form=1, forms=2)
def test_both_helpers_are_killed_and_the_run_comes_back(launch: FaultLaunch) -> None:
    running = launch.start_ready("--restarts", "1", *ranks(first(OBEYS)))
    for keeper in launch.keepers():
        keeper.kill()
    comes_back(launch.finish(running), launch)


@over_ways(Promise.KILLED, form=2, forms=3)
def test_launch_is_killed_between_two_attempts(launch: FaultLaunch) -> None:
    """The second failure is another one, so a pause of 5 s follows, in which nothing runs anywhere."""
    running = launch.start_ready("--restarts", "9", *ranks(f"{AT_GO}; exit $((7 + LAUNCH_ATTEMPT))"))
    running.go()
    running.wait_for(r"restarting in 5 s")
    assert not launch.ranks()
    os.kill(launch.launcher().pid, signal.SIGKILL)
    running.wait()
    launch.wait_until_nothing_runs()


@over_ways(Promise.RESTART_LOST)
def test_a_host_is_lost_and_comes_back(launch: FaultLaunch) -> None:
    """Nobody can ask it what is left, so the run waits until nothing can be."""
    running = launch.start_ready("--restarts", "1", *short_silence(), *ranks(first(OBEYS)))
    launch.last.cut()
    running.wait_for(rf"restarting in \d+ s, when nothing can be alive any more on {launch.last.name}")
    Host.plug(launch.last)
    comes_back(launch.finish(running), launch)
