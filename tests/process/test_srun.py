"""An agent on each node by one srun: what it carries arrives as it was, and ends as over SSH.

srun is a stand-in here (fake_srun.py), the agents and their processes are real; tests/slurm has the real one.
tests/process/test_agents.py has what is the same for all agents.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from machines.channels import read_all, read_line
from machines.patience import DEADLINE_S, NEVER_S, slowed
from machines.ports import free_port
from machines.processes import is_alive, read_command
from node_process import find_marked, share_code, wait_until

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.transports.base import STDERR, STDOUT, Channel, TransportError
from launcher.transports.srun import SrunTransport, find_ports

MARK = "SRUN_TEST_MARK"
FAKE = Path(__file__).with_name("fake_srun.py")
A, B = Host("n1"), Host("n2")
JOB = Allocation("7", ("n1", "n2"))


class Cluster:
    """Hosts under the stand-in, and a look at all that runs there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write_program("srun", f'exec {shlex.quote(sys.executable)} {shlex.quote(str(FAKE))} "$@"')
        self.mark = f"{folder.name}.{os.getpid()}"
        self.env = {
            **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", MARK: self.mark, "XDG_CACHE_HOME": f"{folder}/cache"
        }  # fmt: skip
        for host in (A, B):
            share_code(folder / "cache" / host.name)
        self.reached: list[SrunTransport] = []

    def write_program(self, name: str, script: str) -> None:
        """Let srun, or another program of Slurm, be this shell script."""
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def reach(
        self, *hosts: Host, pythons: Sequence[str] = (sys.executable,), silence_s: float = NEVER_S, **env: Any
    ) -> SrunTransport:
        self.reached.append(SrunTransport(hosts, JOB, pythons, {**self.env, **env}, silence_s))
        return self.reached[-1]

    def pids(self, text: str = "") -> list[int]:
        """Return the processes that the stand-in and the agents have started, whose command line holds `text`."""
        return sorted(pid for pid in find_marked(self.mark, MARK) if text in read_command(pid))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    for transport in running.reached:
        transport.close()
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


# ---- processes


def test_bytes_and_exit_codes(cluster: Cluster, any_python: str) -> None:
    transport, data = cluster.reach(A, B, pythons=[any_python]), os.urandom(300_000)
    for host in (A, B):
        streams, code = run(transport, host, f"head -c {len(data)} | tee /dev/stderr; exit 7", data)
        assert streams == {STDOUT: data, STDERR: data}
        assert code == 7


def test_a_rank_is_no_task_and_has_no_login(cluster: Cluster) -> None:
    names = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "PMI_RANK", "SSH_CONNECTION", "SLURM_JOB_ID", "KEPT")
    transport = cluster.reach(A, **dict.fromkeys(names, "x"), HOME="/tmp")
    streams, _ = run(transport, A, "env; pwd")
    lines = streams[STDOUT].decode().splitlines()
    assert [name for name in names if any(line.startswith(f"{name}=") for line in lines)] == ["SLURM_JOB_ID", "KEPT"]
    assert lines[-1] == "/tmp"


def test_every_node_gets_the_same_few_bytes_once_it_has_the_code(cluster: Cluster) -> None:
    """Neither the code nor the command lines of other nodes."""
    shutil.rmtree(cluster.folder / "cache")
    sizes = []
    for hosts in ([A], [A, B], [A, B]):
        transport = cluster.reach(*hosts, FAKE_SRUN_COPY=f"{cluster.folder}/sent")
        for host in hosts:
            run(transport, host, f"# {'x' * 10_000}")
        transport.close()
        sizes.append((cluster.folder / "sent").stat().st_size)
    assert min(sizes[:2]) > 100_000, "one of them had no code"
    assert sizes[2] < 500


def test_no_secret_is_in_a_command_line_or_an_environment(cluster: Cluster) -> None:
    transport = cluster.reach(A, FAKE_SRUN_COPY=f"{cluster.folder}/sent")
    run(transport, A, "true")
    token = (cluster.folder / "sent").read_bytes().rpartition(b'"token": "')[2][:64]
    assert len(token) == 64 and int(token, 16)
    shown = [_read(Path(f"/proc/{pid}/{name}")) for pid in cluster.pids() for name in ("cmdline", "environ")]
    assert len(shown) >= 6, "srun, its daemon and the agent"
    assert not [text for text in shown if token in text]


# ---- ends


def test_a_channel_that_is_closed_ends_its_process_alone(cluster: Cluster) -> None:
    """What hangs may be the agent: another one serves the node from then on."""
    transport = cluster.reach(A, B)
    first, second = (transport.open(host, "echo $$ $PPID; cat", DEADLINE_S) for host in (A, B))
    pids = [list(map(int, read_line(channel).split())) for channel in (first, second)]
    first.close()
    wait_until(lambda: not is_alive(pids[0][0]))
    assert first.read() == (0, b"")
    second.write(b"still\n")
    assert read_line(second) == b"still\n"
    assert int(run(transport, A, "echo $PPID")[0][STDOUT]) != pids[0][1]
    assert int(run(transport, B, "echo $PPID")[0][STDOUT]) == pids[1][1]
    second.close()


def test_an_agent_outlasts_the_signals_of_slurm(cluster: Cluster) -> None:
    """Slurm sends them to every process of a step, and the supervisors' last messages must be carried."""
    transport = cluster.reach(A)
    channel = transport.open(A, "echo $PPID; cat", DEADLINE_S)
    agent = int(read_line(channel))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(agent, number)
    channel.write(b"on\n")
    assert read_line(channel) == b"on\n"
    channel.close()


# ---- failures


def fail_of(channel: Channel) -> str:
    with pytest.raises(TransportError) as caught:
        read_all(channel)
    return caught.value.failure.text


def test_another_attempt_keeps_the_steps_that_hosts_use(cluster: Cluster) -> None:
    """An agent that was lost gets a step of its own each time; else they would add up for as long as a run lasts."""
    transport = cluster.reach(A, B)

    def lose_agent() -> None:
        agent = int(run(transport, A, "echo $PPID")[0][STDOUT])
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: not is_alive(agent))
        wait_until(has_another_agent)

    def has_another_agent() -> bool:
        with contextlib.suppress(TransportError):  # nobody has noticed its end yet
            return run(transport, A, "exit 3")[1] == 3
        return False

    for _ in range(3):
        lose_agent()
    own = run(transport, B, "echo $PPID")[0][STDOUT]
    assert transport.renew([A]) and transport.renew([A, B]) and not transport.renew([Host("n3")])
    assert len(transport._started) == 2, "that of all hosts, and the last one of n1"
    assert run(transport, B, "echo $PPID")[0][STDOUT] == own
    assert run(transport, A, "exit 3")[1] == 3


def test_what_runs_goes_on_without_srun(cluster: Cluster) -> None:
    """Slurm tells nobody that srun was killed, and the agents don't need it any more."""
    transport = cluster.reach(A, B)
    channel = transport.open(A, "echo $PPID; cat", DEADLINE_S)
    agent = int(read_line(channel))
    os.kill(cluster.pids("fake_srun.py --jobid")[0], signal.SIGKILL)
    wait_until(lambda: not cluster.pids("fake_srun.py --jobid"))
    channel.write(b"on\n")
    assert read_line(channel) == b"on\n"
    assert int(run(transport, A, "echo $PPID")[0][STDOUT]) == agent
    os.kill(agent, signal.SIGKILL)
    assert fail_of(channel) == "srun was killed by signal 9"
    assert run(transport, A, "echo again")[0][STDOUT] == b"again\n"


def test_a_node_that_slurm_can_t_start_is_left_out(cluster: Cluster) -> None:
    """srun ends such a step by itself."""
    says = "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure"
    fake = f'{shlex.quote(sys.executable)} {shlex.quote(str(FAKE))} "$@"'
    cluster.write_program("srun", f'case "$*" in *n1,n2*) echo "{says}"; exit 1;; *) exec {fake};; esac')
    transport = cluster.reach(A, B)
    assert run(transport, A, "echo on")[0][STDOUT] == b"on\n"
    with pytest.raises(TransportError) as caught:
        transport.open(B, "true", DEADLINE_S)
    assert caught.value.failure.text == "Slurm can't start launch's step there: Communication connection failure"


def test_a_node_that_cannot_reach_this_machine(cluster: Cluster) -> None:
    port = free_port()
    cluster.write_program("scontrol", f"echo SrunPortRange = {port}-{port}")
    with pytest.raises(TransportError) as caught:
        cluster.reach(A, FAKE_SRUN_FROM="nowhere").open(A, "true", slowed(2))
    assert caught.value.failure == HostFailure(
        "n1", HostFailureKind.NO_ROUTE,
        f"it can't connect to this machine at nowhere port {port}: name or service not known",
        "let the nodes connect to that port (if Slurm has an SrunPortRange, launch takes one of it), or use "
        "--transport fabric",
    )  # fmt: skip


def test_the_port_is_one_of_slurm_s(cluster: Cluster) -> None:
    port = free_port()
    cluster.write_program("scontrol", f'[ "$*" = "show config" ] && echo "SrunPortRange           = {port}-{port}"')
    assert find_ports(cluster.env) == [port]
    transport = cluster.reach(A)
    assert run(transport, A, "true")[1] == 0
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S):
        pass
    second = cluster.reach(A)
    with pytest.raises(TransportError) as caught:
        second.open(A, "true", DEADLINE_S)
    assert caught.value.failure.text.startswith("this machine can't listen on a port: Address already in use")


@pytest.mark.parametrize("says", ["echo SrunPortRange = 0-0", "exit 1", "echo"])
def test_any_port_will_do(cluster: Cluster, says: str) -> None:
    cluster.write_program("scontrol", says)
    assert find_ports(cluster.env) == [0]


def test_no_python_that_is_new_enough(cluster: Cluster) -> None:
    assert run(cluster.reach(A, pythons=["/no/python", sys.executable]), A, "echo on")[0][STDOUT] == b"on\n"
    with pytest.raises(TransportError) as caught:
        cluster.reach(A, pythons=["/no/python", "false"]).open(A, "true", DEADLINE_S)
    assert caught.value.failure == HostFailure(
        "n1", HostFailureKind.NO_PYTHON, "no Python 3.8 or newer there (tried /no/python, false)",
        "name a newer one with --python PATH",
    )  # fmt: skip


def test_no_srun(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(TransportError) as caught:
        cluster.reach(A, PATH=str(tmp_path / "empty")).open(A, "true", DEADLINE_S)
    failure = caught.value.failure
    assert (failure.text, failure.fix) == (
        "srun can't be started: No such file or directory",
        "load Slurm's module, or use --transport fabric",
    )
