"""A rank that fails, is killed, or succeeds: which rank is named, and that no process outlives the run."""

from __future__ import annotations

import signal

from fault_launch import FAILS, IS_KILLED, OF_EVERY_KIND, READY, FaultLaunch, ranks, said
from ways import Promise, over_ways


@over_ways(Promise.RANK, form=0, forms=3)
def test_a_rank_fails(launch: FaultLaunch) -> None:
    running = launch.start_ready(*ranks(r3=FAILS))
    running.go()
    done = launch.finish(running)
    assert done.exit_code == 7, str(done)
    host, local_rank = launch.last.name, launch.nproc - 1
    assert said(done)[2:] == [
        f"launch: {host} rank 3 failed first (exit code 7), {launch.stopping}",
        "launch: FAILED after N s",
        f"  {host} rank 3 (local rank {local_rank}) at HH:MM:SS:",
        "    exit code 7",
        "  its last lines:",
        "    ready 3",
        "    no such data",
        f"  full log: logs/RUN/node_{len(launch.way.hosts) - 1}.log",
        f"launch: {launch.nothing_left}, exit code 7 (launch report RUN)",
    ]
    cause = done.record["result"]["cause"]
    assert (cause["host"], cause["rank"], cause["local_rank"], cause["exit_code"]) == (host, 3, local_rank, 7)


@over_ways(Promise.RANK, form=1, forms=3)
def test_a_rank_is_killed(launch: FaultLaunch) -> None:
    """Of the other ranks, one obeys, one ignores all signals but SIGKILL, and one has hidden children."""
    running = launch.start_ready(*ranks(**OF_EVERY_KIND, r3=IS_KILLED))
    running.go()
    done = launch.finish(running)
    assert done.exit_code == 128 + signal.SIGKILL, str(done)
    assert said(done)[2] == (f"launch: {launch.last.name} rank 3 failed first (killed by SIGKILL), {launch.stopping}")
    assert said(done)[-1] == f"launch: {launch.nothing_left}, exit code 137 (launch report RUN)"


@over_ways(Promise.RANK, form=2, forms=3)
def test_a_rank_that_ends_well_ends_nobody_but_its_daemon(launch: FaultLaunch) -> None:
    watch = "while kill -0 $1 2>/dev/null; do sleep 0.02; done; touch ended; exec sleep 300"
    daemon = f"setsid sh -c '{watch}' sh $$ >/dev/null 2>&1 & {READY}; exit"
    others = f"{READY}; until [ -e ended ]; do sleep 0.02; done; echo still here"
    running = launch.start_ready(*ranks(others, r0=daemon))
    done = launch.finish(running)
    assert done.exit_code == 0, str(done)
    assert sorted(line for line in done.lines if "still" in line) == [
        f"[{launch.name(rank)}] still here" for rank in (1, 2, 3)
    ]
    assert said(done)[2:] == [f"launch: finished in N s, 4 ranks succeeded, {launch.nothing_left}"]
