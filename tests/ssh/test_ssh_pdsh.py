"""What is pdsh's alone: one process that logs in to all hosts, what its ssh gets, and its end."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import Path

import pytest
from launching import Launch, rank
from machines.patience import slowed
from machines.ports import free_port
from machines.processes import send_signal, wait_until
from machines.runs import Done, shell
from ssh_hosts import Process, SshHosts, read_processes, running_agent

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def transport() -> str:
    return "pdsh"


def find_calls(launch: Launch) -> list[Process]:
    """Return pdsh and all ssh that it has started for a test."""
    config = str(launch.ssh_config)
    return [
        process
        for process in read_processes()
        if Path(process.argv[0]).name in ("pdsh", "ssh")
        and any(config in word for word in (*process.argv, *process.env))
    ]


def find_folders(launch: Launch) -> list[Path]:
    return list(launch.hosts.own_tmpdir.glob("launch-pdsh-*"))


def count_logins(hosts: SshHosts, name: str) -> int:
    return hosts[name].log.count("Accepted publickey")


def test_every_word_goes_over_one_login(launch: Launch, hosts: SshHosts) -> None:
    before = [count_logins(hosts, name) for name in ("node1", "node2")]
    done = launch.run(*shell("echo $RANK"))
    assert done.exit_code == 0
    assert sorted(line.partition("] ")[2] for line in done.lines) == ["0", "1", "2", "3"]
    assert [count_logins(hosts, name) for name in ("node1", "node2")] == [logins + 1 for logins in before]
    assert not find_folders(launch)


def test_a_name_of_this_machine_that_leads_elsewhere(launch: Launch, hosts: SshHosts) -> None:
    """As that of a tunnel does: a run would be on the wrong machine, or as another user."""
    node2 = hosts["node2"]
    hosts.write_config(launch.ssh_config, localhost={"HostName": node2.address, "Port": node2.port})
    words = ["--hosts", "localhost", "--ssh-config", str(launch.ssh_config), "--transport", "pdsh"]
    done = launch.run_command("exec", *words, "--", "echo $TMPDIR")
    assert (done.lines, done.stderr) == ([f"[localhost] {node2.tmpdir}"], "")


def test_hosts_that_a_crowded_gateway_drops_have_their_time_anew(launch: Launch, hosts: SshHosts) -> None:
    """pdsh has all log in at once, and sshd drops some of more than ten (MaxStartups): here both, and late."""
    timeout_s = min(max(slowed(4), 8), 20)  # a try may take ten seconds, most of them for the login; two fit in 20
    # The first try ends well within its time, and the second one is longer than what is left of that.
    once = f"mkdir {launch.folder}/%n 2>/dev/null && {{ sleep {0.75 * timeout_s}; exit; }}"
    way = f"sh -c '{once}; sleep {0.25 * timeout_s + 0.5}; exec ssh -F {launch.ssh_config} -W %h:%p node1'"
    far = {"HostName": hosts["node2"].address, "Port": hosts["node2"].port, "ProxyCommand": way}
    config = hosts.write_config(launch.folder / "config", far1=far, far2=far)
    words = ("--hosts", "far[1-2]", "--ssh-config", str(config), "--connect-timeout", f"{timeout_s:g}")
    done = launch.exec(*words, "-b", "--", "echo in")
    assert (done.exit_code, done.lines) == (0, ["---- far[1-2] ----", "in"]), done.stderr


def test_a_killed_launcher_leaves_neither_pdsh_nor_ssh_nor_sockets(launch: Launch) -> None:
    running = launch.start(*rank("wait"))
    running.wait_for_ranks()
    pdsh = find_pdsh(launch)
    assert pdsh.argv[pdsh.argv.index("-f") + 1] == "2"  # 32 at a time would hang a collective
    assert len(find_calls(launch)) == 5  # with two ssh for each host: its connection, and a process over that
    running.signal(signal.SIGKILL)
    running.wait_until_clean()
    assert wait_until(lambda: not find_calls(launch))
    assert wait_until(lambda: not find_folders(launch))


def test_a_run_outlives_pdsh_and_leaves_nothing_all_the_same(launch: Launch) -> None:
    running = launch.start(*rank("wait"))
    running.wait_for_ranks()
    kill_pdsh(launch)
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.exit_code == 130, done.stderr
    assert "0 processes left on 2 hosts" in done.words[-1]
    assert (find_calls(launch), find_folders(launch)) == ([], [])


def test_a_connection_that_hangs_is_used_for_nothing_more(launch: Launch, hosts: SshHosts) -> None:
    running = launch.start("--silence", f"{slowed(3):g}", *rank("wait"))
    running.wait_for_ranks()
    hanging = hosts["node2"].sessions()
    try:
        for pid in hanging:
            send_signal(pid, signal.SIGSTOP)
        done = running.finish()
    finally:
        for pid in hanging:
            send_signal(pid, signal.SIGCONT)
    assert done.exit_code == 69, done.stderr
    assert "node2 connection" in done.stderr
    assert "0 processes left on 2 hosts" in done.words[-1]


def test_a_restart_ends_the_connections_of_the_attempt_before(launch: Launch, hosts: SshHosts) -> None:
    running = launch.start("--restarts", "1", *rank("wait"))
    running.wait_for_ranks()
    for pid in hosts["node2"].sessions():
        send_signal(pid, signal.SIGKILL)
    running.wait_for_ranks(8)
    assert wait_until(lambda: len(find_calls(launch)) == 5)
    running.signal(signal.SIGINT)
    assert running.finish().exit_code == 130


def find_pdsh(launch: Launch) -> Process:
    (pdsh,) = (process for process in find_calls(launch) if Path(process.argv[0]).name == "pdsh")
    return pdsh


def kill_pdsh(launch: Launch) -> None:
    pdsh = find_pdsh(launch)
    os.kill(pdsh.pid, signal.SIGKILL)
    assert wait_until(lambda: pdsh.pid not in {process.pid for process in find_calls(launch)})


@pytest.mark.parametrize(
    ("hosts_words", "said"),
    [
        ("node1:22,node2:2222", "--transport pdsh: it takes one port for all hosts, not 22 and 2222"),
        ("fd00::1", "--transport pdsh: it takes no IPv6 address: fd00::1"),
        (f"{ME}@node1,node2", "--transport pdsh: some hosts are named with a user, and others without"),
    ],
)
def test_what_pdsh_can_t_do_is_said_before_anything_starts(launch: Launch, hosts_words: str, said: str) -> None:
    done = launch.run_command("exec", "--hosts", hosts_words, "--transport", "pdsh", "--", "true")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"launch: {said}")


def test_a_user_who_is_named_wins_over_ssh_config(launch: Launch, hosts: SshHosts) -> None:
    """pdsh names nobody to ssh who has started it."""
    config = hosts.write_config(launch.folder / "config", node1={"User": "nobody"}, node2={"User": "nobody"})
    done = launch.exec("--ssh-config", str(config), "--hosts", f"{ME}@node1,{ME}@node2", "--", "whoami")
    assert sorted(done.lines) == [f"[node1] {ME}", f"[node2] {ME}"], done.stderr


def test_a_cause_is_told_though_ssh_shall_be_quiet(launch: Launch, hosts: SshHosts) -> None:
    port = free_port("127.0.0.2")
    config = hosts.write_config(launch.folder / "config", node2={"Port": port, "LogLevel": "QUIET"})
    words = ("--ssh-config", str(config), "--", "true")
    done: Done = launch.start_exec(*words, env={"PDSH_SSH_ARGS_APPEND": "-q"}).finish()
    assert f"  node2: 127.0.0.2 port {port} refuses the connection" in done.words


def test_nothing_of_the_user_s_is_forwarded(launch: Launch, hosts: SshHosts) -> None:
    place, made = launch.folder / "agent", launch.folder / "made"
    mine = {
        "ForwardAgent": "yes",
        "ForwardX11": "yes",
        "PermitLocalCommand": "yes",
        "LocalCommand": f"touch {made}",
    }
    config = hosts.write_config(launch.folder / "config", node1=mine)
    words = ("--hosts", "node1", "--ssh-config", str(config), "--", "echo ${SSH_AUTH_SOCK-no agent}")
    with running_agent(place):
        env = {"SSH_AUTH_SOCK": str(place), "PDSH_SSH_ARGS": "-AX -l%u %h", "PDSH_SSH_ARGS_APPEND": "-AX"}
        done = launch.start_exec(*words, env=env).finish()
    assert (done.exit_code, done.lines) == (0, ["[node1] no agent"])
    assert not made.exists()
