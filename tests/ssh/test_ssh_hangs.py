"""Runs that hang: Ctrl-\\ shows where every rank is and the run goes on, --hang-timeout ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator

import pytest
from launching import Launch
from machines.patience import NEVER_S, slowed
from machines.processes import is_alive, send_signal, wait_until
from machines.runs import Running
from ssh_hosts import SshHosts
from terminal import Terminal

SCRIPT = "hang.py"

# All ranks but the one that is named wait for each other; each ends well when somebody opens the gate's other end.
HANGS = """
    import os, sys
    def wait_for_go():
        print("ready", os.environ["RANK"], "pids", os.getpid(), flush=True); os.open("gate", os.O_RDONLY)
    def load_batch():
        wait_for_go()
    def all_reduce():
        wait_for_go()
    load_batch() if os.environ["RANK"] == sys.argv[1] else all_reduce()
"""
PYTHONS_S = 4.0  # until four Pythons, each in a sandbox, are where they hang
BLOCK = [
    "launch: taking the stacks of 4 ranks",
    "launch: stacks of 4 ranks on 2 hosts (node2 rank 2 differs from 3 others)",
    "  node2 rank 2:",
    "    hang.py:8 in <module>",
    "    hang.py:5 in load_batch",
    "    hang.py:3 in wait_for_go",
    "  3 ranks on node[1-2] (0-1, 3):",
    "    hang.py:8 in <module>",
    "    hang.py:7 in all_reduce",
    "    hang.py:3 in wait_for_go",
    "launch: full text in logs/RUN/stacks-1.txt",
]


def hang_timeout(seconds: float) -> tuple[str, str]:
    """Return the words for a time-out, which must not be over before all ranks are where they hang."""
    return "--hang-timeout", f"{slowed(seconds):g}"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as opened:
        yield opened


def hang(launch: Launch, odd: int = 2) -> list[str]:
    """Write the script; return the words that run it."""
    (launch.folder / SCRIPT).write_text(textwrap.dedent(HANGS).lstrip())
    os.mkfifo(launch.folder / "gate")
    return ["--no-python", sys.executable, SCRIPT, str(odd)]


def open_gate(launch: Launch, running: Running) -> None:
    """Open it until all have passed: a rank that was stopped in front of it has to come back."""

    def is_over() -> bool:
        with contextlib.suppress(OSError):  # nobody stands there
            os.close(os.open(launch.folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
        return running.process.poll() is not None

    assert wait_until(is_over)


def test_ctrl_backslash_shows_the_odd_rank_and_the_run_goes_on(launch: Launch, terminal: Terminal) -> None:
    running = launch.start(*hang(launch), **terminal.for_popen())
    terminal.read_until("ready .*", count=4)
    for number in (1, 2):
        terminal.type(b"\x1c")
        terminal.read_until(rf"full text in .*/stacks-{number}\.txt")
    open_gate(launch, running)
    terminal.read_until("launch: finished in .*, 4 ranks succeeded, 0 processes left on 2 hosts")
    assert running.finish().exit_code == 0
    assert terminal.screen.count("(node2 rank 2 differs from 3 others)") == 2


def test_a_silence_that_lasts_too_long_ends_the_run(launch: Launch) -> None:
    running = launch.start(*hang_timeout(PYTHONS_S), *hang(launch))
    done = running.finish()
    assert done.exit_code == 124
    assert done.words[2:] == [
        "launch: no output for N s, taking the stacks of all ranks",
        *BLOCK[1:],
        "launch: no output for N s (--hang-timeout), node2 rank 2 differs from 3 others, stopping the run on 2 hosts",
        "launch: FAILED after N s",
        "  node2 rank 2 (local rank 0) at HH:MM:SS:",
        "    no output for N s (--hang-timeout), node2 rank 2 differs from 3 others",
        "  its last lines:",
        f"    ready 2 pids {running.pid_of(2)}",
        "  full log: logs/RUN/node_1.log",
        "launch: 0 processes left on 2 hosts, exit code 124 (launch report RUN)",
    ]
    assert done.record["result"]["cause"]["what"] == "hang"


def test_ctrl_backslash_before_there_is_a_rank(launch: Launch, hosts: SshHosts) -> None:
    with socket.create_server(("127.0.0.2", 0)) as mute:
        config = hosts.write_config(launch.folder / "config", node2={"Port": mute.getsockname()[1]})
        running = launch.start("--ssh-config", str(config), "--connect-timeout", f"{NEVER_S:g}", *hang(launch))
        assert wait_until(lambda: any(host.processes() for host in hosts))
        running.signal(signal.SIGQUIT)
        running.wait_for("launch: no stacks to show: no rank is running")
        running.signal(signal.SIGINT)
        assert running.finish().exit_code == 130


IN_BACKGROUND = ("sh", "-c", '"$@" & echo $! >launcher.pid; wait $!', "sh")


def test_a_run_in_a_scripts_background_shows_its_stacks(launch: Launch) -> None:
    """There SIGINT and SIGQUIT come ignored, under nohup SIGHUP as well; neither of the other two may end it."""
    running = launch.start(*hang(launch), prefix=(*IN_BACKGROUND, "nohup"))
    running.wait_for_ranks()
    pid = int((launch.folder / "launcher.pid").read_text())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        send_signal(pid, number)
    running.wait_for("launch: full text in")
    assert all(map(is_alive, running.pids()))
    open_gate(launch, running)
    done = running.finish()
    assert done.exit_code == 0
    assert done.words[2:] == [*BLOCK, "launch: finished in N s, 4 ranks succeeded, 0 processes left on 2 hosts"]
    text = (done.logs / "stacks-1.txt").read_text()
    heads = [f"==== node{1 + number // 2} rank {number}, pid {running.pid_of(number)}\n" for number in range(4)]
    assert [head for head in heads if head in text] == heads


def test_ctrl_backslash_in_a_plain_command_ends_the_launcher_and_leaves_nothing(launch: Launch) -> None:
    """As it does in any program; end of file is what tells the nodes."""
    running = launch.start_exec("--", "sh", "-c", "echo ready $$; exec sleep 300")
    running.wait_for("ready", 2)
    running.signal(signal.SIGQUIT)
    assert running.wait().exit_code == -signal.SIGQUIT
    running.wait_until_clean()
