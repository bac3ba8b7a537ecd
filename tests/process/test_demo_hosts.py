"""The demo's loopback hosts, asked by the real OpenSSH client, by paramiko and by Fabric."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import fabric
import paramiko
import pytest
from machines.patience import DEADLINE_S, NEVER_S, slowed
from machines.processes import wait_until
from node_process import is_alive

import launcher.commands.demo_hosts
from launcher.commands.demo_hosts import DemoHosts, demo_hosts

USER = pwd.getpwuid(os.getuid()).pw_name
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH client: apt-get install openssh-client")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def account(home: Path) -> pwd.struct_passwd:
    """Give the hosts an empty home: the rc files of who runs the tests are slow and write to stderr."""
    name, password, uid, gid, gecos, _, _ = pwd.getpwuid(os.getuid())
    return pwd.struct_passwd((name, password, uid, gid, gecos, str(home), "/bin/sh"))


@pytest.fixture(scope="module")
def hosts(account: pwd.struct_passwd) -> Iterator[DemoHosts]:
    with demo_hosts(2, account=account) as running:
        yield running


def ssh_argv(hosts: DemoHosts, *words: str) -> list[str]:
    return ["ssh", "-F", str(hosts.ssh_config), "-o", "BatchMode=yes", *words]


def run_ssh(hosts: DemoHosts, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(ssh_argv(hosts, *words), input=stdin, capture_output=True, timeout=DEADLINE_S, check=False)


def find_host(hosts: DemoHosts, name: str = "node1") -> tuple[str, int]:
    found = paramiko.SSHConfig.from_path(str(hosts.ssh_config)).lookup(name)
    return found["hostname"], int(found["port"])


def connect(hosts: DemoHosts, name: str = "node1", *, user: str = USER, key: Path | None = None) -> paramiko.SSHClient:
    """Log in with nothing but the hosts' own files; an unknown host key is refused."""
    address, port = find_host(hosts, name)
    client = paramiko.SSHClient()
    client.load_host_keys(str(hosts.folder / "known_hosts"))
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.connect(
        address,
        port,
        user,
        key_filename=str(key or hosts.folder / "id_ed25519"),
        allow_agent=False,
        look_for_keys=False,
    )
    return client


def start_and_read_pid(client: paramiko.SSHClient, command: str) -> tuple[paramiko.Channel, int]:
    """Start a command that first prints a process id on a line; return the channel and that id."""
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.exec_command(command)
    return channel, int(channel.makefile("r").readline())


@needs_ssh
def test_death_by_signal_is_128_and_the_signal(hosts: DemoHosts) -> None:
    assert run_ssh(hosts, "node2", "kill -KILL $$").returncode == 128 + signal.SIGKILL


@needs_ssh
def test_20_mb_come_back_exact(hosts: DemoHosts) -> None:
    data = random.Random(1).randbytes(20_000_000)
    done = run_ssh(hosts, "node1", "cat", stdin=data)
    assert done.returncode == 0
    assert done.stdout == data


@needs_ssh
def test_stderr_and_stdout_stay_apart_when_both_are_large(hosts: DemoHosts) -> None:
    done = run_ssh(hosts, "node1", "seq 1 100000 & seq 1 90000 >&2; wait")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    assert done.stderr == "".join(f"{n}\n" for n in range(1, 90_001)).encode()


@needs_ssh
def test_input_that_is_not_read_does_not_stall(hosts: DemoHosts) -> None:
    done = run_ssh(hosts, "node1", "head -c 3; exec <&-; echo; echo done", stdin=b"abc" + bytes(5_000_000))
    assert done.stdout == b"abc\ndone\n"


@needs_ssh
def test_environment_is_clean_and_folder_is_home(
    hosts: DemoHosts, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", "leaked")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = run_ssh(hosts, "-o", "SendEnv=SECRET", "node2", "pwd; env")
    folder, *lines = done.stdout.decode().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    assert Path(folder).samefile(home)
    assert environment["HOME"] == str(home)
    assert environment["USER"] == environment["LOGNAME"] == USER
    assert environment["PATH"].startswith(f"{tmp_path}:")
    client_address, client_port, *server = environment["SSH_CONNECTION"].split()
    assert server == [str(part) for part in find_host(hosts, "node2")]
    assert environment["SSH_CLIENT"] == f"{client_address} {client_port} {server[1]}"
    assert "SECRET" not in environment


@needs_ssh
def test_another_key_is_refused(hosts: DemoHosts, tmp_path: Path) -> None:
    text, _ = launcher.commands.demo_hosts._new_key()
    (tmp_path / "other").touch(mode=0o600)
    (tmp_path / "other").write_text(text)
    config = tmp_path / "config"
    config.write_text(hosts.ssh_config.read_text().replace(f"{hosts.folder}/id_ed25519", f"{tmp_path}/other"))
    done = run_ssh(DemoHosts(hosts.names, config, tmp_path), "node1", "true")
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"Permission denied (publickey)" in done.stderr
    with pytest.raises(paramiko.AuthenticationException):
        connect(hosts, key=tmp_path / "other")


@needs_ssh
def test_another_user_is_refused(hosts: DemoHosts) -> None:
    done = run_ssh(hosts, "-l", f"not-{USER}", "node1", "true")
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr
    with pytest.raises(paramiko.AuthenticationException):
        connect(hosts, user=f"not-{USER}")


@needs_ssh
def test_a_changed_host_key_is_noticed(hosts: DemoHosts, tmp_path: Path) -> None:
    lines = (hosts.folder / "known_hosts").read_text().splitlines()
    swapped = f"{lines[0].rsplit(' ', 1)[0]} {lines[1].rsplit(' ', 1)[1]}\n"
    (tmp_path / "known_hosts").write_text(swapped)
    done = run_ssh(hosts, "-o", f"UserKnownHostsFile={tmp_path}/known_hosts", "node1", "true")
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr


@needs_ssh
@pytest.mark.parametrize(
    "words",
    [["node1"], ["-tt", "node1", "echo ran"], ["-W", "127.0.0.1:22", "node1"], ["-s", "node1", "sftp"]],
    ids=["shell", "terminal", "tcp", "subsystem"],
)
def test_all_but_a_command_is_refused(hosts: DemoHosts, words: list[str]) -> None:
    done = run_ssh(hosts, *words)
    assert (done.returncode, done.stdout) == (255, b"")


def test_names_addresses_and_modes(hosts: DemoHosts) -> None:
    assert hosts.names == ("node1", "node2")
    (first, first_port), (second, second_port) = find_host(hosts, "node1"), find_host(hosts, "node2")
    assert first == "127.0.0.1"
    assert second in ("127.0.0.1", "127.0.0.2")
    assert (first, first_port) != (second, second_port)
    assert stat.S_IMODE(hosts.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((hosts.folder / "id_ed25519").stat().st_mode) == 0o600


def test_fabric_reaches_every_host(hosts: DemoHosts) -> None:
    for name in hosts.names:
        with fabric.Connection(name, config=fabric.Config(runtime_ssh_path=str(hosts.ssh_config))) as connection:
            result = connection.run("echo $SSH_CONNECTION; exit 3", hide=True, warn=True, in_stream=False)
        assert result.exited == 3
        assert result.stdout.split()[2:] == [str(part) for part in find_host(hosts, name)]


def test_many_commands_on_many_connections(hosts: DemoHosts) -> None:
    def run(client: paramiko.SSHClient, number: int) -> tuple[str, int]:
        _, stdout, _ = client.exec_command(f"echo {number}; exit {number}")
        return stdout.read().decode(), stdout.channel.recv_exit_status()

    clients = [connect(hosts, name) for name in hosts.names * 2]
    try:
        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(lambda number: run(clients[number % 4], number), range(64)))
    finally:
        for client in clients:
            client.close()
    assert results == [(f"{number}\n", number) for number in range(64)]


def test_a_disconnect_ends_what_reads_or_writes_but_kills_nobody(hosts: DemoHosts, tmp_path: Path) -> None:
    client = connect(hosts)
    _, reader = start_and_read_pid(client, f"echo $$; cat; echo cleaned >{tmp_path}/reader")
    _, writer = start_and_read_pid(client, "echo $$; exec yes")
    client.close()
    assert wait_until(lambda: not is_alive(reader) and not is_alive(writer))
    assert (tmp_path / "reader").read_text() == "cleaned\n"


def test_a_client_that_does_not_log_in_is_dropped(monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd) -> None:
    """The clock of the hosts jumps, since a login may take long on a busy machine."""
    jumps_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(jumps_s), sleep=time.sleep)
    monkeypatch.setattr(launcher.commands.demo_hosts, "time", clock)
    monkeypatch.setattr(launcher.commands.demo_hosts, "LOGIN_TIMEOUT_S", NEVER_S)
    with demo_hosts(1, account=account) as hosts:
        silent = socket.create_connection(find_host(hosts), timeout=DEADLINE_S)
        banner_only = paramiko.Transport(socket.create_connection(find_host(hosts), timeout=DEADLINE_S))
        banner_only.start_client(timeout=DEADLINE_S)
        with silent, silent.makefile("rb") as said, connect(hosts) as client:
            assert said.readline().startswith(b"SSH-2.0-")
            jumps_s.append(NEVER_S)
            monkeypatch.setattr(launcher.commands.demo_hosts, "LOGIN_TIMEOUT_S", 0.2)
            # Who comes makes the hosts look at their clock; nobody makes them look again, for this one.
            with socket.create_connection(find_host(hosts), timeout=DEADLINE_S) as last, last.makefile("rb") as banner:
                said.read()
                assert wait_until(lambda: not banner_only.is_active())
                banner.read()
            _, stdout, _ = client.exec_command("echo stays")
            assert stdout.read() == b"stays\n"


def test_commands_may_clean_up_at_the_end(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd, tmp_path: Path
) -> None:
    monkeypatch.setattr(launcher.commands.demo_hosts, "END_TIMEOUT_S", NEVER_S)
    with demo_hosts(1, account=account) as hosts:
        client = connect(hosts)
        _, polite = start_and_read_pid(client, f"echo $$; cat; echo cleaned >{tmp_path}/polite")
    client.close()
    assert wait_until(lambda: not is_alive(polite))
    assert (tmp_path / "polite").read_text() == "cleaned\n"


def test_nothing_is_left_after_the_end(monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd) -> None:
    monkeypatch.setattr(launcher.commands.demo_hosts, "END_TIMEOUT_S", slowed(0.5))
    threads, descriptors = threading.active_count(), set(Path("/dev/fd").iterdir())
    with demo_hosts(2, "box", account=account) as hosts:
        assert hosts.names == ("box1", "box2")
        address = find_host(hosts, "box1")
        client = connect(hosts, "box1")
        # One that ignores the end of its input, and one that holds a child in a new session.
        _, stubborn = start_and_read_pid(client, "trap '' HUP TERM; echo $$; while :; do sleep 300; done")
        _, escaped = start_and_read_pid(client, "setsid sh -c 'echo $$; exec sleep 300' & wait")
        began = time.monotonic()
    assert time.monotonic() - began < DEADLINE_S
    assert wait_until(lambda: not any(is_alive(pid) for pid in (stubborn, escaped)))
    assert not hosts.folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    client.close()
    assert wait_until(lambda: threading.active_count() <= threads)
    assert wait_until(lambda: set(Path("/dev/fd").iterdir()) <= descriptors)


def test_the_end_does_not_wait_for_a_daemon_that_holds_the_output(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd
) -> None:
    monkeypatch.setattr(launcher.commands.demo_hosts, "END_TIMEOUT_S", 0.3)
    with demo_hosts(1, account=account) as hosts:
        client = connect(hosts)
        _, daemon = start_and_read_pid(client, "(setsid sh -c 'echo $$; exec sleep 300' &)")
        began = time.monotonic()
    try:
        assert time.monotonic() - began < DEADLINE_S
        assert wait_until(lambda: "demo-session" not in [thread.name for thread in threading.enumerate()])
    finally:
        client.close()
        if is_alive(daemon):
            os.kill(daemon, signal.SIGKILL)
