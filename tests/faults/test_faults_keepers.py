"""Guardian and supervisor of the last host: one killed, both killed at once, or both suspended."""

from __future__ import annotations

import re
import signal

from fault_launch import (
    HIDES_WITH_MARK,
    IGNORES,
    OF_EVERY_KIND,
    FaultLaunch,
    ranks,
    said,
    short_silence,
)
from machines.processes import send_signal
from ways import Promise, over_ways


@over_ways(
    Promise.KEEPER,
    "killed, others, exit_code, told",
    {
        "supervisor": ((1,), OF_EVERY_KIND, 128 + signal.SIGKILL, "killed by SIGKILL"),
        "guardian": ((0,), OF_EVERY_KIND, 1, "its parent process was killed"),
        # The kernel signals the ranks, and a second login finds the others by the run's mark and kills them.
        "both at once": ((0, 1), {"r1": IGNORES, "r2": HIDES_WITH_MARK}, 1, "its parent process was killed"),
    },
)
def test_a_helper_is_killed(
    launch: FaultLaunch, killed: tuple[int, ...], others: dict[str, str], exit_code: int, told: str
) -> None:
    running = launch.start_ready(*ranks(**others))
    keepers = launch.keepers()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither sees the other die
        for place in killed:
            send_signal(keepers[place].pid, number)
    done = launch.finish(running)
    assert done.exit_code == exit_code, str(done)
    first = rf"launch: {launch.last.name} helper failed first \(({told}|\S+/enter was killed)\), {launch.stopping}"
    assert re.fullmatch(first, said(done)[2]), said(done)  # what enters a container may go before the supervisor speaks
    assert said(done)[-1] == f"launch: {launch.nothing_left}, exit code {exit_code} (launch report RUN)"


@over_ways(Promise.KILLED, form=1, forms=3)
def test_the_launcher_and_both_are_killed_at_once(launch: FaultLaunch) -> None:
    """As with `pkill -9 -f launch`: the process that started the ranks stops them."""
    with launch.while_there_is("held"):
        launch.start_ready(*ranks(r2=IGNORES, r3=HIDES_WITH_MARK))
        everybody = (launch.launcher(), *launch.keepers())
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another die
            for process in everybody:
                send_signal(process.pid, number)
        launch.wait_until_nothing_runs()


@over_ways(Promise.SILENT)
def test_both_are_stopped(launch: FaultLaunch) -> None:
    """A second login to the host stops the ranks without them."""
    running = launch.start_ready(*short_silence(), *ranks(**OF_EVERY_KIND))
    keepers = launch.keepers()
    for keeper in keepers:
        send_signal(keeper.pid, signal.SIGSTOP)
    done = running.wait()
    assert not launch.ranks()
    for keeper in keepers:
        send_signal(keeper.pid, signal.SIGCONT)
    assert done.exit_code == 69, str(done)
    assert said(done)[2] == f"launch: lost {launch.last.name} (no heartbeat for N s), {launch.stopping}"
    assert said(done)[-1] == f"launch: {launch.nothing_left}, exit code 69 (launch report RUN)"
    launch.wait_until_clean()
