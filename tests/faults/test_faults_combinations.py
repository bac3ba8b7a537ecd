"""Faults at awkward moments of a detached run: a row for each moment, with what happens then, and what must follow.

Some of them are tried more closely without other hosts, in tests/process: test_runs_of_this_machine.py has two `stop`
and names that mean several runs, test_remote_launcher.py ids that are taken and a silent launch host,
test_interruptions.py Ctrl-C again and again, test_exec_here.py closed streams, and test_session.py a far host that
fails first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from fault_launch import AT_GO, FAILS, OBEYS, READY, FaultLaunch, ask, ranks, short_silence
from machines.cluster import Host
from machines.patience import NEVER_S
from machines.processes import CENSUS_POLL_S, read_name, send_signal, wait_until
from machines.runs import Running
from machines.slurm import LOGIN
from ways import WAYS

# The least time for which the hosts wait for the launch host, which is what the rows before `go` take.
CONNECT = ("--connect-timeout", "10")
RESTARTS = ("--restarts", "2")
# A rank of the first attempt does what the test asks for; those of the next ones are well.
WELL = f"[ $LAUNCH_ATTEMPT = 0 ] || {{ {READY}; exit 0; }}"
FAILS_ONCE = f"{WELL}; {AT_GO}; exit 7"
WAITS_FOR_GO = f"{READY}; until [ -e go ]; do sleep 0.5; done; exit 0"  # for long: each sleep is a process
_SAVE = "echo saving $RANK; until [ -e go ]; do sleep 0.1; done; echo saved $RANK; exit"
SAVES_UNTIL_GO = f"trap '{_SAVE}' TERM; {READY}; while :; do sleep 0.1; done"
# The second failure differs from the first, so a pause follows. Then the code must be there.
NEEDS_ITS_CODE = f"{READY}; [ $LAUNCH_ATTEMPT = 2 ] || exit $((7 + LAUNCH_ATTEMPT)); exec cmp big.bin copy.bin"
LARGE_LOG = "seq -f %0199g 4000"  # in two ranks, more than what is copied at a time
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


def find_ids(launch: FaultLaunch) -> dict[str, str]:
    """Return the ids of this machine's runs, by their controllers."""
    return {row["controller"]: row["run"] for row in json.loads(ask(launch, "ps", "--json").stdout)}


def names(host: Host) -> list[str]:
    return [read_name(process.pid) for process in host.processes()]


# ---- the moment: seen, never waited for by the clock --------------------------------------------------------------


def ordering(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """An agent waits for its order, since nobody can log in to the controller's host."""
    launch.hosts[0].block(22, is_silent=True)
    running = launch.start(*words)
    assert wait_until(lambda: "launch-agent" in names(launch.last), poll_s=CENSUS_POLL_S)
    return running


def planting(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The controller and all agents are there, and one can't reach it: so there is no `go`."""
    launch.last.drop_from(launch.hosts[0])
    running = launch.start(*words)
    there = [(launch.last, "launch-agent"), (launch.hosts[0], "launch-agent"), (launch.hosts[0], "launch")]
    assert wait_until(lambda: all(name in names(host) for host, name in there), poll_s=CENSUS_POLL_S)
    return running


def starting(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """All ranks run, and the terminal still waits whether they live."""
    return launch.start_ready(*words)


def in_background(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """All ranks run, and the terminal's Ctrl-C is for others, as after `&` in a script."""
    launch.way = replace(launch.way, before=("sh", "-c", "trap '' INT; exec \"$@\"", "sh"))
    return launch.start_ready(*words)


def unread(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The run has ended, and the terminal shows no more than the beginning of its output, as after Ctrl-S."""
    ours, theirs = os.openpty()
    running = launch.start(*words, stdout=theirs)
    os.close(theirs)
    running.process.stdout = os.fdopen(ours, "rb", buffering=0)
    assert wait_until(lambda: "launch: finished in" in told(launch)), told(launch)
    return running


def on_a_small_disk(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The controller's host has little room for what it keeps about runs."""
    state = launch.logs.parents[1]
    state.mkdir(parents=True, exist_ok=True)
    launch.hosts[0].mount(str(state), "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "none")
    return launch.start_ready(*words)


def restarting(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The run waits for its next attempt: nothing of it lives but its controller and its agents."""
    code = launch.folder / "code"
    code.mkdir()
    for name in ("big.bin", "copy.bin"):
        (code / name).write_bytes(bytes(300_000))  # too large to be kept by the controller
    launch.hosts[0].mount(str(code), "-t", "tmpfs", "none")  # all hosts see the files of this machine
    running = launch.start(f"--sync={code}", *words)
    running.wait_for(r"restarting in 5 s")
    return running


def settled(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """The run continues without its terminal."""
    running = launch.start(*words)
    assert running.wait().exit_code == 0, str(running)
    assert re.search(CONTINUES, running.stderr)
    return running


def attached(launch: FaultLaunch, words: tuple[str, ...]) -> Running:
    """Two terminals attach to it, and will copy its logs."""
    running = launch.start_ready(*words)
    for _ in range(2):
        with (launch.folder / "watched").open("ab") as said:
            launch.slurm.start("launch", "attach", cwd=launch.folder, stdout=subprocess.DEVNULL, stderr=said)
    assert wait_until(lambda: names(launch.hosts[0]).count("launch") == 3, poll_s=CENSUS_POLL_S)
    return running


# ---- what happens then --------------------------------------------------------------------------------------------


def nothing(launch: FaultLaunch) -> None:
    """The moment itself is the fault."""


def cut_login(launch: FaultLaunch) -> None:
    """The machine of the terminal has lost its network, or its power: no host hears of it."""
    launch.slurm.cluster[LOGIN].cut()


def cut_last(launch: FaultLaunch) -> None:
    launch.last.cut()


def cut_controller(launch: FaultLaunch) -> None:
    launch.hosts[0].cut()


def remove_code(launch: FaultLaunch) -> None:
    """A cleaner of caches removes the controller's code, and then a rank fails."""
    shutil.rmtree(launch.logs.parents[3] / ".cache" / "launch" / "code")
    launch.started[-1].go()


def clean_code(launch: FaultLaunch) -> None:
    done = ask(
        launch, "clean", "--code", "--hosts", "node1,node2", "--ssh-config", str(launch.slurm.cluster.ssh_config)
    )
    assert re.search(r"launch: removed the code of [1-9]\d* runs? on 2 hosts", done.stderr), done


def interrupt(launch: FaultLaunch) -> None:
    send_signal(launch.launcher().pid, signal.SIGINT)


def fill_disk(launch: FaultLaunch) -> None:
    """It takes not one more byte, and not one more file."""
    fill = "cat /dev/zero >zeros; while : >$((n += 1)); do :; done"
    launch.slurm.run("sh", "-c", fill, host="node1", cwd=launch.logs.parents[1])


def fail_on_a_full_disk(launch: FaultLaunch) -> None:
    fill_disk(launch)
    launch.started[-1].go()


def stop_twice(launch: FaultLaunch) -> None:
    """A second Ctrl-C would kill ranks that save; the second `stop` doesn't."""
    first = launch.slurm.start("launch", "stop", cwd=launch.folder, stderr=subprocess.PIPE)
    assert wait_until(lambda: count_logged(launch, "] saving ") == 4)  # the terminal may have left the run by now
    second = launch.slurm.start("launch", "stop", cwd=launch.folder, stderr=subprocess.PIPE)
    assert second.stderr is not None
    is_news = re.compile(rb"(?!launch: waiting for )").match
    came_second = next(filter(is_news, second.stderr))
    launch.started[-1].go()
    (last,), rest = (list(filter(is_news, each.communicate()[1].splitlines(keepends=True))) for each in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), (came_second, last, rest)
    assert rest == [last] != [came_second]


def count_logged(launch: FaultLaunch, words: str) -> int:
    return sum(log.read_text().count(words) for log in launch.logs.glob("latest/node_*.log"))


def interrupt_its_end(launch: FaultLaunch) -> None:
    """Ctrl-C again and again, from when the result is known until the terminal's process is gone."""
    running, launcher = launch.started[-1], launch.launcher()
    running.go()
    running.wait_for("FAILED after")
    while running.process.poll() is None:
        send_signal(launcher.pid, signal.SIGINT)
        time.sleep(0.005)


# ---- what must follow ---------------------------------------------------------------------------------------------


def the_agent_ends(launch: FaultLaunch, running: Running) -> None:
    """By itself, whatever becomes of the network."""
    assert wait_until(lambda: not names(launch.last), poll_s=CENSUS_POLL_S), names(launch.last)
    running.process.kill()


def all_ends(launch: FaultLaunch, running: Running) -> None:
    """The controller and its agents, by themselves."""
    assert wait_until(lambda: not any(map(names, launch.hosts)), poll_s=CENSUS_POLL_S), list(map(names, launch.hosts))
    assert not list(launch.logs.glob("2*")), "a run that never started leaves no logs"
    running.process.kill()


def the_start_fails(launch: FaultLaunch, running: Running) -> None:
    running.wait_for("no restart: a host was lost before the run could continue without its terminal$")
    launch.last.heal()  # so its agent hears that the run is over
    assert running.wait().exit_code == 69, str(running)
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
    attempts = json.loads((launch.logs / "latest" / "run.json").read_text())["attempts"]
    assert [attempt["blamed"] for attempt in attempts] == [{}] * len(attempts)


def only_the_controller_waits(launch: FaultLaunch, running: Running) -> None:
    """With what it has to show; no agent, and no port for it, stays on any host."""
    assert wait_until(lambda: not any("launch-agent" in names(host) for host in launch.hosts), poll_s=CENSUS_POLL_S)
    assert "launch" in names(launch.hosts[0]) and running.process.poll() is None
    assert running.process.stdout is not None
    with contextlib.suppress(OSError), running.process.stdout as screen:  # EIO at the end
        while screen.read(1 << 20):
            pass
    assert running.wait().exit_code == 0, str(running)


def it_succeeds(launch: FaultLaunch, running: Running) -> None:
    running.go()
    done = launch.finish(running)
    assert done.exit_code == 0, str(done)


def it_ends_with_its_own_code(launch: FaultLaunch, running: Running) -> None:
    done = running.wait()
    assert done.exit_code == 7, str(done)
    ask(launch, "wait", code=7)


def no_message_is_wrong(launch: FaultLaunch, running: Running) -> None:
    it_ends_with_its_own_code(launch, running)
    assert "incomplete" not in running.stderr and "nothing was started" not in running.stderr, str(running)


def it_can_be_stopped(launch: FaultLaunch, running: Running) -> None:
    ask(launch, "stop")
    ask(launch, "wait", code=130)
    running.wait()
    has_left = "continues without this terminal" in running.stderr  # a while after all ranks run
    assert running.process.returncode == (0 if has_left else 130), str(running)


def all_have_saved(launch: FaultLaunch, running: Running) -> None:
    (run,) = find_ids(launch).values()  # without a name, only one whose end this machine hasn't seen is meant
    ask(launch, "wait", run, code=130)
    launch.finish(running)
    assert count_logged(launch, "] saved ") == 4
    again = ask(launch, "stop", run).stderr
    assert "was stopped before\n" in again, again


def all_copies_are_whole(launch: FaultLaunch, running: Running) -> None:
    """Each waits for the one before."""
    running.go()
    assert running.wait().exit_code == 0, str(running)
    said = launch.folder / "watched"
    assert wait_until(lambda: said.read_text().count(" of node1 to logs/") == 2), said.read_text()
    name = find_ids(launch)["node1"]
    assert [path.name for path in (launch.folder / "logs").iterdir()] == [name]
    for log in ("node_0.log", "node_1.log", "run.json", "launch.log"):
        assert (launch.folder / "logs" / name / log).read_bytes() == (launch.logs / name / log).read_bytes()


# ---- the table ----------------------------------------------------------------------------------------------------

ROWS = {
    "ordering-host-cut": Combination((*CONNECT, *ranks()), ordering, cut_last, the_agent_ends),
    "planting-power": Combination(
        (*CONNECT, *RESTARTS, *ranks()), planting, cut_login, all_ends
    ),
    "starting-host-cut": Combination(
        (*RESTARTS, *short_silence(), *ranks()), starting, cut_last, the_start_fails
    ),
    "starting-code-removed": Combination(
        (*RESTARTS, *ranks(f"{WELL}; {OBEYS}", r3=FAILS_ONCE)), starting, remove_code, it_comes_back
    ),
    "starting-in-background": Combination(ranks(WAITS_FOR_GO), in_background, interrupt, it_succeeds),
    "starting-stopped-twice": Combination(
        ("--stop-timeout", f"{NEVER_S:g}", *ranks(SAVES_UNTIL_GO)), starting, stop_twice, all_have_saved
    ),
    "starting-disk-full-and-stopped": Combination(ranks(), on_a_small_disk, fill_disk, it_can_be_stopped),
    "ending-disk-full": Combination(
        ranks(r3=FAILS), on_a_small_disk, fail_on_a_full_disk, it_ends_with_its_own_code
    ),
    "ending-interrupted": Combination(ranks(r3=FAILS), starting, interrupt_its_end, no_message_is_wrong),
    "ending-attached": Combination(ranks(f"{AT_GO}; {LARGE_LOG}"), attached, nothing, all_copies_are_whole),
    "ended-unread": Combination(ranks("seq 400000"), unread, nothing, only_the_controller_waits),
    "restarting-code-cleaned": Combination(
        ("--restarts", "5", *ranks(NEEDS_ITS_CODE)), restarting, clean_code, it_succeeds
    ),
    "settled-controller-cut": Combination(
        ("--hosts", "node1,node2,login", "--controller", "node1", "--min-nodes", "1", *RESTARTS, *short_silence(),
         *ranks(WAITS_FOR_GO)),
        settled, cut_controller, nobody_is_blamed,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", [way for way in WAYS if way.name == "detached"], ids=["detached"])
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_a_fault_at_an_awkward_moment(launch: FaultLaunch, row: Combination) -> None:
    running = row.phase(launch, tuple(row.words))
    row.fault(launch)
    row.follows(launch, running)
    launch.wait_until_clean()
