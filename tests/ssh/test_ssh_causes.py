"""What dies in a run, on two SSH hosts: ranks, what keeps them, connections, hosts, the launcher, our own disk.

Each test looks for three things: the cause is named (host, rank, how), the exit code is the cause's, and nothing of
the run is left when the launcher says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from launching import (
    LADDER_S,
    PROMPT_S,
    RANK_FILE,
    SILENCE_S,
    STOP_TIMEOUT_S,
    Launch,
    Running,
    every_transport,
    over_transports,
    rank,
    shell,
)
from ssh_hosts import SshHosts

NOTHING_LEFT = "0 processes left on 2 nodes"


def start(launch: Launch, *behaviours: str) -> Running:
    """Start four ranks and wait until all are ready."""
    running = launch.start(*rank(*behaviours))
    running.wait_for_ranks()
    return running


# ---- ranks ----------------------------------------------------------------------------------------------------------


def test_a_rank_raises(launch: Launch) -> None:
    running = start(launch, "wait", "3=fail")
    running.go()
    done = running.finish(PROMPT_S)
    assert done.exit_code == 1
    pid = running.pid_of(3)
    assert done.words[2:] == [
        "launch: node2 rank 3 failed first (exit code 1), stopping 2 nodes",
        "launch: FAILED after N s",
        "  node2 rank 3 (local rank 1) at HH:MM:SS:",
        f'    File "{RANK_FILE}", line {line_of("raise ValueError")}, in main',
        '      raise ValueError(f"rank {RANK} met a NaN")',
        "    ValueError: rank 3 met a NaN",
        "  its last lines:",
        f"    ready 3 pids {pid}",
        "    one more line",
        "  3 others followed: 2 on node1, 1 on node2 (stopped by us)",
        "  all of it: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 nodes, exit code 1",
    ]
    cause = done.record["result"]["cause"]
    assert (cause["host"], cause["rank"], cause["local_rank"], cause["exit_code"]) == ("node2", 3, 1, 1)


def line_of(text: str) -> int:
    """Return the number of the first line of rank.py that holds `text`."""
    lines = RANK_FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_exit_code_is_the_first_failure_s(launch: Launch) -> None:
    done = launch.run(*shell('[ "$RANK" = 1 ] && exit 42; sleep 1; exit 43'))
    assert done.exit_code == 42
    assert "launch: node1 rank 1 failed first (exit code 42), stopping 2 nodes" in done.words


def test_a_known_line_is_explained_on_the_screen_and_in_the_record(launch: Launch) -> None:
    line = "RuntimeError: No CUDA GPUs are available"
    done = launch.run(*shell(f'[ "$RANK" = 1 ] || exec sleep 300; echo "{line}" >&2; exit 3'))
    cause = "this rank sees no GPU: none there, hidden by CUDA_VISIBLE_DEVICES, or the container got none"
    fix = "launch exec -- nvidia-smi; on CPUs: --nproc N --cpu"
    assert done.words[6:10] == [f"  why: {cause}", f"  fix: {fix}", "  its last lines:", f"    {line}"]
    record = done.record["result"]["cause"]
    assert record["explanation"] == {"name": "no-gpu", "cause": cause, "fix": fix}
    assert record["oom"] is None


@pytest.mark.parametrize(
    ("survivors", "within_s"), [("wait", PROMPT_S), ("rename", PROMPT_S), ("fork", LADDER_S), ("ignore", LADDER_S)]
)
def test_a_rank_is_killed(launch: Launch, survivors: str, within_s: float) -> None:
    """The others obey SIGTERM, rename themselves, have hidden children, or ignore all but SIGKILL."""
    if survivors == "rename":
        pytest.importorskip("setproctitle", reason="no setproctitle: pip install setproctitle")
    running = start(launch, survivors)
    os.kill(running.pid_of(2), signal.SIGKILL)
    done = running.finish(within_s)
    assert done.exit_code == 128 + signal.SIGKILL
    assert "launch: node2 rank 2 failed first (killed by SIGKILL), stopping 2 nodes" in done.words
    assert f"launch: {NOTHING_LEFT}, exit code 137" in done.words


def test_a_command_that_is_not_there(launch: Launch) -> None:
    done = launch.run("--no-python", "/nonexistent/train")
    assert done.exit_code == 127
    assert "launch: can't start /nonexistent/train: No such file or directory" in done.stderr
    assert NOTHING_LEFT in done.stderr


def test_a_rank_that_ends_well_does_not_end_the_others(launch: Launch) -> None:
    done = launch.run(*shell('[ "$RANK" = 0 ] && exit; sleep 0.5; echo "still here"'))
    assert done.exit_code == 0
    assert done.stdout.count("still here") == 3


def test_a_daemon_that_outlives_its_rank_is_ended(launch: Launch) -> None:
    done = launch.run(*shell("setsid sleep 300 >/dev/null 2>&1 & echo done"))
    assert done.exit_code == 0
    assert NOTHING_LEFT in done.stderr


# ---- guardian and supervisor ----------------------------------------------------------------------------------------


@over_transports("survivors, within_s", [("wait", PROMPT_S), ("fork", LADDER_S)])
def test_the_supervisor_is_killed(launch: Launch, hosts: SshHosts, survivors: str, within_s: float) -> None:
    running = start(launch, survivors)
    hosts["node2"].supervisor().kill()
    done = running.finish(within_s)
    assert done.exit_code == 128 + signal.SIGKILL
    assert "launch: node2 supervisor failed first (killed by SIGKILL), stopping 2 nodes" in done.words
    assert NOTHING_LEFT in done.stderr


@over_transports("survivors, within_s", [("wait", PROMPT_S), ("fork", LADDER_S)])
def test_the_guardian_is_killed(launch: Launch, hosts: SshHosts, survivors: str, within_s: float) -> None:
    running = start(launch, survivors)
    hosts["node2"].guardian().kill()
    done = running.finish(within_s)
    assert "launch: node2 supervisor failed first (its guardian was killed), stopping 2 nodes" in done.words
    assert done.exit_code == 1
    assert NOTHING_LEFT in done.stderr


def test_guardian_and_supervisor_are_killed_at_once(launch: Launch, hosts: SshHosts) -> None:
    """The kernel tells the ranks, and a second login looks what is left."""
    running = start(launch, "wait")
    for keeper in (hosts["node2"].guardian(), hosts["node2"].supervisor()):
        keeper.kill()
    done = running.finish(PROMPT_S)
    assert done.exit_code != 0
    assert NOTHING_LEFT in done.stderr


# ---- connections and hosts ------------------------------------------------------------------------------------------


@every_transport
def test_the_sshd_session_of_one_host_is_killed(launch: Launch, hosts: SshHosts) -> None:
    running = start(launch, "wait")
    for pid in hosts["node2"].sessions():
        os.kill(pid, signal.SIGKILL)
    done = running.finish(PROMPT_S)
    assert done.exit_code == 69
    assert "launch: lost node2 (the connection was lost), stopping 2 nodes" in done.words
    assert NOTHING_LEFT in done.stderr


def test_a_host_whose_processes_freeze_is_swept_over_a_new_connection(launch: Launch, hosts: SshHosts) -> None:
    running = start(launch, "wait")
    frozen = hosts["node2"].processes()
    for process in frozen:
        process.kill(signal.SIGSTOP)
    done = running.finish(SILENCE_S + STOP_TIMEOUT_S + LADDER_S)
    for process in hosts["node2"].processes():  # the sweep has left guardian and supervisor to themselves
        process.kill(signal.SIGCONT)
    assert done.exit_code == 69
    assert "launch: lost node2 (no sign of life for N s), stopping 2 nodes" in done.words
    assert NOTHING_LEFT in done.stderr
    running.wait_until_clean(PROMPT_S)


@every_transport
def test_a_host_that_freezes_whole_is_named_and_cleans_up_when_it_thaws(launch: Launch, hosts: SshHosts) -> None:
    running = launch.start("--connect-timeout", "2", *rank("wait"))
    running.wait_for_ranks()
    hosts["node2"].freeze()
    try:
        done = running.wait(SILENCE_S + LADDER_S + 4)
        assert not hosts["node1"].ranks()
    finally:
        hosts["node2"].thaw()
    assert done.exit_code == 69
    assert "launch: lost node2 (no sign of life for N s), stopping 2 nodes" in done.words
    assert "launch: 0 processes left on 1 node; node2 unreachable, 2 processes may remain, exit code 69" in done.words
    assert done.record["result"]["unreachable"] == {"node2": 2}
    running.wait_until_clean(LADDER_S)


# ---- the launcher ---------------------------------------------------------------------------------------------------


@over_transports("ranks, within_s", [("wait", PROMPT_S), ("ignore", LADDER_S), ("fork", LADDER_S)])
def test_the_launcher_is_killed(launch: Launch, ranks: str, within_s: float) -> None:
    running = start(launch, ranks)
    running.signal(signal.SIGKILL)
    running.wait_until_clean(within_s)


def test_the_launcher_freezes(launch: Launch) -> None:
    """Nobody hangs up, so the nodes' leases run out."""
    running = start(launch, "wait")
    running.signal(signal.SIGSTOP)
    running.wait_until_clean(SILENCE_S + PROMPT_S)
    running.signal(signal.SIGCONT)
    done = running.finish(SILENCE_S + LADDER_S)
    assert done.exit_code != 0


# ---- our own disk ---------------------------------------------------------------------------------------------------


def on_a_small_disk(folder: Path, options: str) -> list[str]:
    """Return the words in front of a command that give it a tiny disk at `folder`."""
    alone = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    folder.mkdir()
    words = [*alone, "sh", "-c", f'mount -t tmpfs -o {options} none "$0" && exec "$@"', str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace here: run as root, or allow user namespaces (sysctl user.max_user_namespaces)")
    return words


@pytest.mark.parametrize("options", ["size=64k", "nr_inodes=1"])
def test_a_full_disk_is_said_once_and_the_run_goes_on(launch: Launch, options: str) -> None:
    prefix = on_a_small_disk(launch.folder / "logs", options)
    done = launch.start(*shell("seq 1 20000; echo end"), prefix=prefix).finish()
    assert done.exit_code == 0
    complaints = [line for line in done.words if "can't write" in line]
    assert len(complaints) == 1
    assert complaints[0].endswith("No space left on device; the run goes on, its logs will have gaps")
    assert len(done.lines) == 4 * 20_001
    assert NOTHING_LEFT in done.stderr
