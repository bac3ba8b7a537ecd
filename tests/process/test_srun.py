"""Bytes over one srun: what the relays of several nodes carry arrives as it was, and ends as over SSH.

srun is a stand-in here (fake_srun.py), the relays and their processes are real; tests/slurm has the real one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines.channels import read_all, read_line
from machines.patience import DEADLINE_S, slowed
from node_process import is_alive, wait_until

from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.node.relays import relay
from launcher.node.relays.relay import LINE_BYTES
from launcher.transports.base import STDERR, STDOUT, Channel, TransportError
from launcher.transports.relayed import step_lifecycle
from launcher.transports.relayed.srun import SrunTransport

MARK = "SRUN_TEST_MARK"
FAKE = Path(__file__).with_name("fake_srun.py")
ROOT = Path(__file__).parents[2]
A, B = Host("n1"), Host("n2")
JOB = Allocation("7", ("n1", "n2"))


class Cluster:
    """Hosts under the stand-in, and a look at all that runs there."""

    def __init__(self, folder: Path) -> None:
        program = folder / "srun"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(FAKE))} "$@"\n')
        program.chmod(0o755)
        self.mark = f"{folder.name}.{os.getpid()}"
        self.env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", MARK: self.mark}

    def reach(self, *hosts: Host, pythons: Sequence[str] = (sys.executable,), **env: str) -> SrunTransport:
        return SrunTransport(hosts, JOB, pythons, {**self.env, **env})

    def pids(self, text: str = "") -> list[int]:
        """Return the processes that the stand-in and the relays have started, whose command line holds `text`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and f"{MARK}={self.mark}".encode() in _read(entry / "environ"):
                command = _read(entry / "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
                if text in command and is_alive(int(entry.name)):
                    found.append(int(entry.name))
        return sorted(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    try:
        wait_until(lambda: not running.pids())
    finally:
        for pid in running.pids():
            os.kill(pid, signal.SIGKILL)


def run(transport: SrunTransport, host: Host, command: str, data: bytes = b"") -> tuple[dict[int, bytes], int | None]:
    channel = transport.open(host, command, DEADLINE_S)
    if data:
        channel.write(data)
    streams = read_all(channel)
    code = channel.exit_code()
    channel.close()
    return streams, code


# ---- bytes


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], bytes]]:
    """Return what goes through a process that copies so many bytes to stdout, and all of them to stderr."""
    running = Cluster(tmp_path_factory.mktemp("echo"))
    transport = running.reach(A, B)
    holds = transport.open(B, "cat", DEADLINE_S)  # or srun would end with each process

    def call(data: bytes) -> bytes:
        streams, code = run(transport, A, f"head -c {len(data)} | tee /dev/stderr", data)
        assert code == 0
        assert streams[STDERR] == streams[STDOUT]
        return streams[STDOUT]

    yield call
    holds.close()


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=3000) | st.text(alphabet="\r\n\0 a~é😀", max_size=900).map(str.encode))
def test_bytes_come_back_as_they_were(echo: Callable[[bytes], bytes], data: bytes) -> None:
    assert echo(data) == data


@pytest.mark.parametrize("size", [LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 4096, 1 << 20])
def test_long_lines_come_back_as_they_were(echo: Callable[[bytes], bytes], size: int) -> None:
    data = os.urandom(size).replace(b"\n", b"\r")
    assert echo(data) == data


def test_a_character_is_not_lost_where_it_is_cut(cluster: Cluster) -> None:
    transport = cluster.reach(A)
    script = "printf '\\303'; sleep 0.05; printf '\\251\\n'"
    assert run(transport, A, script) == ({STDOUT: "é\n".encode(), STDERR: b""}, 0)


def test_what_is_sent_to_several_hosts_arrives_at_each(cluster: Cluster) -> None:
    """Blocks that were sent before go as numbers, and the parts before them differ."""
    transport, common = cluster.reach(A, B), os.urandom(50_000)
    channels = []
    for host, own in ((A, b"1"), (B, b"22"), (A, b"")):
        data = own + common
        channels.append((transport.open(host, f"head -c {len(data)} | md5sum", DEADLINE_S), data))
        channels[-1][0].write(data)
    for channel, data in channels:
        assert read_all(channel)[STDOUT].split()[0].decode() == hashlib.md5(data).hexdigest()
        channel.close()


def test_a_host_that_is_not_read_stops_no_other(cluster: Cluster) -> None:
    transport, size = cluster.reach(A, B), 20_000_000
    flood = transport.open(A, f"head -c {size} /dev/zero", DEADLINE_S)
    for _ in range(20):
        assert run(transport, B, "echo on")[0][STDOUT] == b"on\n"
    assert len(flood._pending[STDOUT]) <= relay.WINDOW_BYTES + relay.READ_BYTES
    assert len(read_all(flood)[STDOUT]) == size
    flood.close()


def test_a_process_that_does_not_read_stops_no_other(cluster: Cluster, tmp_path: Path) -> None:
    transport, data = cluster.reach(A, B), os.urandom(1_000_000)
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; head -c {len(data)} | md5sum"
    deaf = transport.open(A, script, DEADLINE_S)
    deaf.write(data)
    for host in (A, B):
        assert run(transport, host, "head -c 3", b"on\n")[0][STDOUT] == b"on\n"
    (tmp_path / "go").touch()
    assert read_all(deaf)[STDOUT].split()[0].decode() == hashlib.md5(data).hexdigest()
    deaf.close()


# ---- ends


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("no-such", 127)])
def test_exit_codes(cluster: Cluster, command: str, code: int) -> None:
    transport = cluster.reach(A)
    assert run(transport, A, command)[1] == code


def test_hosts_have_processes_of_their_own_one_after_the_other(cluster: Cluster) -> None:
    for _ in range(5):  # on a busy machine the second one may come too late for the same relay
        transport = cluster.reach(A, B)
        other = transport.open(B, "cat", DEADLINE_S)
        places = [run(transport, A, "echo $SLURMD_NODENAME $PPID") for _ in range(2)]
        other.close()
        assert places[0][0][STDOUT].startswith(b"n1 ")
        if places[0] == places[1]:  # the same relay
            break
    assert places[0] == places[1]


def test_a_relay_that_had_nothing_to_do_is_not_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have ended by now."""
    monkeypatch.setattr(step_lifecycle, "_REUSE_S", 0)
    transport = cluster.reach(A, B)
    other = transport.open(B, "cat", DEADLINE_S)
    places = [run(transport, A, "echo $PPID")[0][STDOUT] for _ in range(2)]
    assert places[0] != places[1]
    other.close()


def test_a_rank_is_no_task_and_has_no_login(cluster: Cluster) -> None:
    names = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "PMI_RANK", "SSH_CONNECTION", "SLURM_JOB_ID", "KEPT")
    transport = cluster.reach(A, **dict.fromkeys(names, "x"), HOME="/tmp")
    streams, _ = run(transport, A, "env; pwd")
    lines = streams[STDOUT].decode().splitlines()
    assert [name for name in names if f"{name}=x" in lines] == ["SLURM_JOB_ID", "KEPT"]
    assert lines[-1] == "/tmp"


def test_a_channel_that_is_closed_ends_its_process_alone(cluster: Cluster) -> None:
    transport = cluster.reach(A, B)
    first, second = (transport.open(host, "echo $$; cat", DEADLINE_S) for host in (A, B))
    pids = [int(read_line(channel)) for channel in (first, second)]
    first.close()
    wait_until(lambda: not is_alive(pids[0]))
    assert first.read() == (0, b"")
    assert is_alive(pids[1])
    second.write(b"still\n")
    assert read_line(second) == b"still\n"
    second.close()
    assert not cluster.pids("fake_srun.py --jobid"), "close of the last one waits for srun"


def test_close_wakes_who_reads(cluster: Cluster) -> None:
    channel = cluster.reach(A).open(A, "cat", DEADLINE_S)
    ends: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: ends.append(channel.read()))
    reader.start()
    channel.close()
    reader.join(DEADLINE_S)
    assert ends == [(0, b"")]


LAUNCHER = """
import os, time
from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.transports.relayed.srun import SrunTransport
hosts = [Host("n1"), Host("n2")]
transport = SrunTransport(hosts, Allocation("7", ("n1", "n2")), ["python3"], os.environ)
for host in hosts:
    print(int(transport.open(host, "echo $$; cat", 60).read()[1]), flush=True)
time.sleep(300)
"""


def test_when_the_launcher_is_killed_every_process_sees_the_end(cluster: Cluster) -> None:
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, env=cluster.env)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    assert all(map(is_alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)))


# ---- failures


def fail_of(channel: Channel) -> str:
    with pytest.raises(TransportError) as caught:
        read_all(channel)
    return caught.value.failure.text


def test_a_relay_that_is_killed_loses_its_host_alone(cluster: Cluster) -> None:
    transport = cluster.reach(A, B)
    lost = transport.open(A, "echo $PPID; cat", DEADLINE_S)
    other = transport.open(B, "cat", DEADLINE_S)
    os.kill(int(read_line(lost)), signal.SIGKILL)
    assert fail_of(lost) == "launch's task there ended: Killed"
    lost.close()
    other.write(b"on\n")
    assert read_line(other) == b"on\n"
    assert run(transport, A, "echo again")[0][STDOUT] == b"again\n"
    other.close()


def test_after_srun_is_killed_another_step_tells_the_lost_processes(cluster: Cluster) -> None:
    transport = cluster.reach(A, B)
    channels = {host: transport.open(host, "echo $$; cat; sleep 0.1", DEADLINE_S) for host in (A, B)}
    pids = {host: int(read_line(channel)) for host, channel in channels.items()}
    os.kill(cluster.pids("fake_srun.py --jobid")[0], signal.SIGKILL)
    for host, channel in channels.items():
        assert fail_of(channel) == "srun was killed by signal 9"
        channel.close()
        assert is_alive(pids[host]), "Slurm tells nobody"
        again = transport.open(host, "cat", DEADLINE_S)
        wait_until(lambda host=host: not is_alive(pids[host]))
        again.close()


def test_a_node_that_does_not_come_is_left_out(cluster: Cluster) -> None:
    env = {**cluster.env, "FAKE_SRUN_MISSING": "n2", "FAKE_SRUN_SAYS": "srun: job 7 queued and waiting"}
    transport = SrunTransport((A, B), JOB, [sys.executable], env)
    said: list[str] = []
    timeout_s = slowed(2)

    def ask_missing() -> None:
        with pytest.raises(TransportError) as caught:
            transport.open(B, "echo on", DEADLINE_S)  # on a busy machine it may wait longer than the other one
        said.append(caught.value.failure.text)

    thread = threading.Thread(target=ask_missing)
    thread.start()
    channel = transport.open(A, "echo on", timeout_s)
    thread.join()
    assert said == [f"Slurm has not started launch's step there in {timeout_s:g} s: job 7 queued and waiting"]
    assert read_all(channel)[STDOUT] == b"on\n"
    channel.close()


def test_no_python_that_is_new_enough(cluster: Cluster) -> None:
    with pytest.raises(TransportError) as caught:
        cluster.reach(A, pythons=["/no/python", "false"]).open(A, "true", DEADLINE_S)
    assert caught.value.failure.text == "no Python 3.8 or newer there (tried /no/python, false)"
    assert caught.value.failure.fix == "name a newer one with --python PATH"


def test_a_python_that_is_missing_is_passed_over(cluster: Cluster) -> None:
    transport = cluster.reach(A, pythons=["/no/python", sys.executable])
    assert run(transport, A, "echo on")[0][STDOUT] == b"on\n"


def test_no_srun(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(TransportError) as caught:
        cluster.reach(A, PATH=str(tmp_path / "empty")).open(A, "true", DEADLINE_S)
    failure = caught.value.failure
    assert (failure.text, failure.fix) == (
        "srun can't be started: No such file or directory",
        "load Slurm's module, or use --transport fabric",
    )


def test_what_is_said_before_is_the_host_s_noise(cluster: Cluster) -> None:
    transport = cluster.reach(
        A, FAKE_SRUN_SAYS="srun: a word\nsrun: cluster configuration lacks support for cpu binding"
    )
    streams, _ = run(transport, A, "printf on; printf off >&2")
    assert streams == {STDOUT: b"on", STDERR: b"\nsrun: a word\noff"}


def test_what_srun_says_after_the_end_of_a_process_is_kept(cluster: Cluster) -> None:
    transport = cluster.reach(A, B)
    lost = transport.open(B, "echo $PPID; cat", DEADLINE_S)
    relay_pid = int(read_line(lost))
    run(transport, A, "true")
    assert (transport.own_messages(A), transport.own_messages(B)) == ((), ())
    os.kill(relay_pid, signal.SIGKILL)
    wait_until(lambda: transport.own_messages(B))
    assert transport.own_messages(B) == ("srun: error: n2: task 1: Killed",)
    assert transport.own_messages(A) == ()
    lost.close()


def test_a_relay_ends_though_somebody_holds_the_pipe_of_what_has_ended(cluster: Cluster) -> None:
    """A daemon of a command, here: the end of the command was told before that of its output, which never comes."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom launcher.node.relays import relay\nrelay.main('n', 1, 1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**cluster.env, "SLURM_PROCID": "0"},
    )  # fmt: skip
    assert process.stdin and process.stdout
    process.stdin.write(b"open 1 0 " + b2a_base64(b"sleep 300 & echo $!"))
    process.stdin.flush()
    daemon = int(a2b_base64(process.stdout.readline().split()[-1]))
    try:
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
    finally:
        os.kill(daemon, signal.SIGKILL)
        process.kill()


def test_a_relay_that_nobody_needs_ends_by_itself(cluster: Cluster, any_python: str) -> None:
    code = (
        "import sys; sys.path.insert(0, {!r})\nfrom launcher.node.relays import relay\n"
        "relay.{} = 0.2\nrelay.main('n', 1, 1)"
    )
    folder = str(Path(relay.__file__).parents[3])
    import subprocess

    for name, lines in (("START_S", b""), ("LINGER_S", b"open 1 0 dHJ1ZQ==\n")):
        argv = [any_python, "-c", code.format(folder, name)]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**cluster.env, "SLURM_PROCID": "0", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        began_at = time.monotonic()
        assert process.stdin and process.stdout
        process.stdin.write(lines)
        process.stdin.flush()
        assert process.stdout.read() == (b"~n exit 1 0\n" if lines else b"")
        assert process.wait(DEADLINE_S) == 0
        assert time.monotonic() - began_at > 0.2
        process.stdin.close()
