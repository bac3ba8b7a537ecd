"""Faults in a Slurm allocation: whatever dies, the cause is named, and nothing is left on nodes that can be reached."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from machines.processes import wait_until
from machines.runs import shell
from machines.slurm import LOGIN
from slurm_launch import PROMPT_S, SILENCE_S, SlurmLaunch, words_of

RELAY = "here"  # in the command line of a relay's loader
SLACK_S = 3.0  # of a busy machine


def test_a_rank_that_fails(launch: SlurmLaunch) -> None:
    script = 'echo ready; [ "$RANK" != 3 ] || { sleep 0.1; echo "no such data" >&2; exit 7; }; sleep 300'
    done = launch.start("--nproc", "2", *shell(script)).finish()
    assert done.exit_code == 7
    assert words_of(done)[2:] == [
        "launch: node2 rank 3 failed first (exit code 7), stopping 2 nodes",
        "launch: FAILED after N s",
        "  node2 rank 3 (local rank 1) at HH:MM:SS:",
        "    exit code 7",
        "  its last lines:",
        "    no such data",
        "    ready",
        "  3 others followed: 2 on node1, 1 on node2 (stopped by us)",
        "  all of it: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 nodes, exit code 7",
    ]


@pytest.mark.parametrize(("number", "who", "code"), [(signal.SIGINT, "you", 130), (signal.SIGTERM, "SIGTERM", 143)])
def test_a_signal(launch: SlurmLaunch, number: int, who: str, code: int) -> None:
    running = launch.start_waiting()
    os.kill(launch.find("bin/launch").pid, number)
    done = running.finish(PROMPT_S)
    assert done.exit_code == code
    assert words_of(done)[-1] == f"launch: stopped by {who} after N s, 0 processes left on 2 nodes"


def test_the_launcher_is_killed(launch: SlurmLaunch) -> None:
    """The shell lives, and so does the allocation: Slurm ends nothing here."""
    argv = ("launch", "--nproc", "2", "--stop-timeout", "1", *shell("echo ready; sleep 300"))
    running = launch.type("sh", "-c", '"$@"; echo ended; until [ -e go ]; do sleep 0.05; done', "sh", *argv)
    running.wait_for(r"\] ready", 4)
    launch.find("bin/launch").kill()
    running.wait_for("^ended$")
    assert wait_until(lambda: not launch.slurm.cluster.ranks(), PROMPT_S)
    assert wait_until(lambda: not launch.processes(LOGIN, "srun"), PROMPT_S)
    running.go()
    running.finish()


def test_srun_is_killed(launch: SlurmLaunch) -> None:
    running = launch.start_waiting()
    launch.find("srun --jobid").kill()
    done = running.finish(2 * PROMPT_S)
    assert done.exit_code == 69
    assert re.fullmatch(r"launch: lost node\d \(srun was killed by signal 9\), stopping 2 nodes", words_of(done)[2])
    assert words_of(done)[-1] == "launch: 0 processes left on 2 nodes, exit code 69"


def test_launcher_and_srun_are_killed(launch: SlurmLaunch) -> None:
    """Slurm tells nobody: the lease does."""
    argv = ("launch", "--nproc", "1", "--silence", str(SILENCE_S), *shell("echo ready; sleep 300"))
    running = launch.type("sh", "-c", '"$@"; until [ -e go ]; do sleep 0.05; done', "sh", *argv)
    running.wait_for(r"\] ready", 2)
    launcher = launch.find("bin/launch")
    os.kill(launcher.pid, signal.SIGSTOP)  # it would start another srun
    for process in (*launch.processes(LOGIN, "srun --jobid"), launcher):
        process.kill()
    assert wait_until(lambda: not launch.slurm.cluster.ranks(), SILENCE_S + SLACK_S)
    # When the shell ends, Slurm kills what is left, and the supervisors would not come to remove the run's folders.
    folders = [host.tmpdir for host in launch.slurm.cluster]
    assert wait_until(lambda: not any(map(os.listdir, folders)), PROMPT_S)
    running.go()
    running.finish()


def test_a_relay_is_killed(launch: SlurmLaunch) -> None:
    running = launch.start_waiting()
    launch.find(RELAY, "node2").kill()
    done = running.finish(2 * PROMPT_S)
    assert done.exit_code == 69
    assert words_of(done)[2] == "launch: lost node2 (our task there ended: Killed), stopping 2 nodes"
    assert words_of(done)[-1] == "launch: 0 processes left on 2 nodes, exit code 69"


def test_the_step_is_cancelled(launch: SlurmLaunch) -> None:
    running = launch.start_waiting()
    step = launch.slurm.run("squeue", "--steps", "--noheader", "--format=%i").stdout.strip()
    launch.slurm.run("scancel", step)
    done = running.finish(2 * PROMPT_S)
    assert done.exit_code == 69
    assert re.fullmatch(
        r"launch: lost node\d \(Slurm has cancelled (our step|step \d+\.\d)\), stopping 2 nodes", words_of(done)[2]
    )
    assert words_of(done)[-1] == "launch: 0 processes left on 2 nodes, exit code 69"


def test_the_job_is_cancelled(launch: SlurmLaunch) -> None:
    """salloc ends nothing by itself: each supervisor gets a SIGTERM from Slurm, and says so."""
    running = launch.start_waiting()
    launch.slurm.run("scancel", launch.slurm.run("squeue", "--noheader", "--format=%i").stdout.strip())
    done = running.finish(2 * PROMPT_S)
    assert re.fullmatch(
        r"launch: (node\d supervisor failed first \(|lost node\d ).*, stopping 2 nodes", words_of(done)[2]
    )
    assert re.search(r"^  why: (Slurm was told to end|somebody ended) ", done.stderr, re.MULTILINE), done


def test_the_job_of_a_script_is_cancelled(launch: SlurmLaunch) -> None:
    job = launch.submit("launch --nproc 2 --stop-timeout 1 --no-python sh -c 'echo ready; sleep 300'")
    assert wait_until(lambda: (launch.folder / "job.log").exists() and launch.log.count("ready") == 4, 10)
    launch.slurm.run("scancel", job)
    assert wait_until(lambda: "0 processes left on 2 nodes" in launch.log, 2 * PROMPT_S), launch.log
    # Slurm signals launcher and supervisors at once, and either may be first.
    assert re.search(r"^(launch: stopped by SIGTERM after|  why: Slurm was told to end) ", launch.log, re.MULTILINE)


def test_a_node_is_switched_off(launch: SlurmLaunch) -> None:
    running = launch.start_waiting("--connect-timeout", "3")
    launch.slurm.cluster["node2"].power_off()
    running.wait_for(r"^launch: lost node2 \(no sign of life for 2 s\), stopping 2 nodes$")
    done = running.finish()
    assert done.exit_code == 69
    assert words_of(done)[-1] == (
        "launch: 0 processes left on 1 node; node2 unreachable, 2 processes may remain, exit code 69"
    )
    assert not launch.processes(LOGIN, "srun"), "srun waits for a node that is gone"


def test_a_node_that_was_off_before(launch: SlurmLaunch) -> None:
    running = launch.type(
        "sh", "-c", "until [ -e go ]; do sleep 0.05; done; launch exec --connect-timeout 2 -- uname -n"
    )
    launch.find("until")
    launch.slurm.cluster["node2"].power_off()
    began_at = time.monotonic()
    running.go()
    done = running.finish()
    assert time.monotonic() - began_at < 2 + 2 * SLACK_S
    assert (done.exit_code, done.lines) == (69, ["[node1] node1"])
    assert words_of(done)[0:2] == [
        "launch: 1 host can't be used:",
        "  node2: Slurm has not started our step there in N s",
    ]
