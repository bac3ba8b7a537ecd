"""How a user ends a run, and terminals and pipes that nobody reads."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launch, every_transport, rank
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import wait_until
from machines.runs import shell
from ssh_hosts import SshHosts
from terminal import Terminal

from launcher.hosts.host import Host
from launcher.transports.base import STDOUT, TransportSettings
from launcher.transports.ssh.fabric import FabricChannel, FabricTransport

LINES = 200_000  # of each rank: 5 MB with their prefixes, so that all four exceed what is queued for the screen
FLOOD = f"until [ -e go ]; do sleep 0.02; done; seq 1 {LINES}"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as opened:
        yield opened


# ---- signals --------------------------------------------------------------------------------------------------------


@every_transport
def test_ctrl_c_while_a_host_does_not_answer(launch: Launch, hosts: SshHosts) -> None:
    with socket.create_server(("127.0.0.2", 0)) as mute:
        config = hosts.write_config(launch.folder / "config", node2={"Port": mute.getsockname()[1]})
        running = launch.start("--ssh-config", str(config), "--connect-timeout", f"{NEVER_S:g}", *rank("wait"))
        assert wait_until(lambda: any(host.processes() for host in hosts))
        running.signal(signal.SIGINT)
        done = running.finish()
    assert done.exit_code == 130
    assert "node2 unreachable" not in done.stderr  # nothing was started there


def test_ctrl_c_in_the_middle_of_a_read(launch: Launch) -> None:
    """An exception that comes just after paramiko has taken a lock leaves it taken: closing waited for it for ever."""
    channel = FabricTransport(TransportSettings(ssh_config=launch.ssh_config)).open(
        Host("node1"), "exec cat", DEADLINE_S
    )
    assert isinstance(channel, FabricChannel)
    channel.write(b"x")
    assert channel.read() == (STDOUT, b"x")  # it runs: else it may start when the test has looked for what is left
    channel._channel.in_buffer._lock.acquire()
    channel.close()


# ---- a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["ssh"])  # whose clients a terminal's keys could reach
def test_ctrl_c_and_ctrl_z_on_a_terminal(launch: Launch, terminal: Terminal) -> None:
    running = launch.start(*rank("wait"), **terminal.for_popen())
    terminal.read_until("ready .*", count=4)
    terminal.type(b"\x1a")
    terminal.read_until("ignoring Ctrl-Z.*\n")  # to its end: what is typed next is echoed wherever the output stands
    terminal.type(b"\x03")
    terminal.read_until(r"\^Claunch: stopping the run on 2 hosts")
    terminal.read_until("launch: stopped by you after .*, 0 processes left on 2 hosts")
    assert running.finish().exit_code == 130


def test_a_terminal_that_stands_still_does_not_stop_the_run(launch: Launch, terminal: Terminal) -> None:
    running = launch.start(*shell(f"echo ready; {FLOOD}"), **terminal.for_popen())
    terminal.read_until(r"\] ready", count=4)
    terminal.type(b"\x13")
    running.go()
    wait_for_logs(launch)
    running.wait_until_clean()
    terminal.type(b"\x11")
    terminal.read_until(r"launch: \d+ lines not shown here; the logs have all of them")
    terminal.read_until("launch: finished in .*, 4 ranks succeeded, 0 processes left on 2 hosts")
    assert running.finish().exit_code == 0


def wait_for_logs(launch: Launch) -> None:
    """Wait until both nodes' logs hold every line of FLOOD."""
    logs = [launch.folder / "logs" / "latest" / f"node_{number}.log" for number in (0, 1)]
    assert wait_until(lambda: all(count_last_lines(log) == 2 for log in logs))


def count_last_lines(log: Path) -> int:
    return log.read_bytes().count(f"] {LINES}\n".encode()) if log.exists() else 0


# ---- pipes ----------------------------------------------------------------------------------------------------------


def test_a_pipe_that_was_closed_does_not_stop_the_run(launch: Launch) -> None:
    """As with `| head -1`, or a pager that was quit."""
    running = launch.start(*shell(FLOOD), stdout=subprocess.PIPE)
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.go()
    done = running.finish()
    assert done.exit_code == 0
    assert sorted(done.words[2:]) == [  # a thread of its own finds the pipe closed, at the end of the run at the latest
        "launch: can't write to stdout any more (Broken pipe); the run continues",
        "launch: finished in N s, 4 ranks succeeded, 0 processes left on 2 hosts",
    ], done.stderr
    wait_for_logs(launch)
