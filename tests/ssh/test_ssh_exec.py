"""launch exec: a plain command on every host."""

from __future__ import annotations

import signal

from launching import Launch
from machines.processes import send_signal
from ssh_hosts import SshHosts


def test_output_of_every_host(launch: Launch) -> None:
    done = launch.exec("--", "echo", "a  b", "$HOME", "'")
    assert (done.exit_code, done.stderr) == (0, "")
    assert sorted(done.lines) == ["[node1] a  b $HOME '", "[node2] a  b $HOME '"]
    assert not (launch.folder / "logs").exists()


def test_one_word_is_a_shell_s_line(launch: Launch) -> None:
    done = launch.exec("--", 'echo "$((6 * 7))" | cat; echo oops >&2; nosuchprogram 2>/dev/null')
    assert sorted(done.lines) == ["[node1] 42", "[node2] 42"]
    assert sorted(done.stderr.splitlines()[:-1]) == ["[node1] oops", "[node2] oops"]
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (127, "launch: node[1-2]: exit code 127")


def test_ctrl_c(launch: Launch) -> None:
    running = launch.start_exec("--", "echo ready; exec sleep 300")
    running.wait_for("] ready", 2)
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.exit_code == 130
    assert done.words[:2] == [
        "launch: stopping the command on 2 hosts (Ctrl-C again: kill now)",
        "launch: stopped, 0 processes left on 2 hosts",
    ]


def test_a_host_that_is_lost_is_named(launch: Launch, hosts: SshHosts) -> None:
    running = launch.start_exec("--", f"echo ready; until [ -e {launch.folder}/go ]; do sleep 0.02; done; echo end")
    running.wait_for("] ready", 2)
    for pid in hosts["node2"].sessions():
        send_signal(pid, signal.SIGKILL)
    running.go()
    done = running.finish()
    assert done.exit_code == 69
    assert "  node2: the connection was lost" in done.words
    assert "[node1] end" in done.lines
