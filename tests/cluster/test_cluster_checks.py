"""Hosts that differ, are busy, or can't reach each other: what `launch check` prints, and what a launch makes of it."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from cluster_launch import Launch, short_connect, short_silence
from machines.cluster import Cluster, Host
from machines.processes import read_state, send_signal, wait_until
from machines.runs import Running, shell

ECHO = shell("echo started")
ON_CPUS = ("--nproc", "1", *ECHO)
REFUSED = "launch: nothing was started; these would break the run:"
PORT = 29511
GO_ON = "fix: choose other GPUs with --include, or start anyway with --no-check"
WAIT = GO_ON.replace(", or", ", wait with --queue, or")
COUNTS = "fix: pass --gpus N for equal numbers: each GPU adds a rank to the global batch"
# A rank that outlives its keepers: they let it get a SIGTERM when they die.
HARDY = "trap '' TERM; echo \"ready $RANK\"; while :; do sleep 300; done"


@pytest.fixture
def train(launch: Launch) -> str:
    (launch.folder / "train.py").write_text("print('started')\n")
    return "train.py"


@pytest.fixture
def gpus(cluster: Cluster) -> None:
    """Give eight GPUs to each host."""
    for name in ("node1", "node2", "node3"):
        cluster[name].set_gpus(8)


# ---- nothing to find ------------------------------------------------------------------------------------------------


def test_hosts_that_are_equal(launch: Launch, train: str) -> None:
    done = launch.check("--start=plain", "--cpu", "--nproc", "1", train)
    assert done.exit_code == 0
    assert done.stderr == ""
    first, traits, last = done.table
    assert (first, last) == ("3 hosts responded (N s)", "nothing would break a run")
    assert traits.startswith("  on all  CPUs, python 3.")
    assert ", torch 2." in traits
    assert ", train.py " in traits
    assert not list(launch.folder.glob("logs*"))


def test_one_host(launch: Launch) -> None:
    done = launch.check(*ON_CPUS, hosts="node1")
    assert done.exit_code == 0
    assert done.table == ["1 host responded (N s)", "  on all  CPUs, data over lo", "nothing would break a run"]
    (line,) = launch.check("--json", *ON_CPUS, hosts="node1").lines
    assert json.loads(line)["hosts"]["node1"]["route"]["probe_port"] is None  # a torchrun by hand may wait for node 0


# ---- GPUs -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpus")
def test_gpus_that_are_fewer_busy_or_of_another_driver(launch: Launch, cluster: Cluster) -> None:
    cluster["node1"].set_gpus(8, busy=[(7, 1, 400)])
    cluster["node2"].set_gpus(8, busy=[(0, 1, 70000), (1, 1, 70000), (2, 99999, 9000)], driver="535.1")
    cluster["node3"].set_gpus(4)
    unseen = "GPU 2 busy: pid 99999, not visible there (another container?), 8.8 GB"
    done = launch.check(*ECHO)
    assert done.exit_code == 70
    assert done.table == [
        "3 hosts responded (N s)",
        "! node2  GPU 0 and 1 busy: pid 1 (sshd) of root, 137 GB",
        f"         {WAIT}",
        "  node1  GPU 7 busy: pid 1 (sshd) of root, 0.4 GB",
        f"         {GO_ON}",
        f"  node2  {unseen}",
        f"         {GO_ON}",
        "  node3  4 GPUs, the others 8 GPUs",
        f"         {COUNTS}",
        "  node2  driver 535.1, the others 999.99",
        "         fix: update it: NCCL may refuse to start",
        "1 problem would break a run, 4 warnings",
    ]


@pytest.mark.usefixtures("gpus")
def test_a_busy_gpu_refuses_the_run_unless_it_is_told_to_go_on(launch: Launch, cluster: Cluster) -> None:
    cluster["node2"].set_gpus(8, busy=[(0, 1, 70000)])
    done = launch.start(*ECHO).finish()
    assert done.exit_code == 70
    assert done.words == [REFUSED, "  node2: GPU 0 busy: pid 1 (sshd) of root, 68 GB", f"    {WAIT}"]
    done = launch.start("--no-check", "--gpus", "1", *ECHO).finish()
    assert done.exit_code == 0
    assert (
        done.words[1] == "launch: checked in N s: 8 x Fake GPU 80 GB, driver 999.99, data over data1 or data2 or data3"
    )
    assert done.record["warnings"] == []
    done = launch.start("--include", "node1:1@node2:1", *ECHO, hosts="node[1-2]").finish()
    assert done.exit_code == 0


# ---- the network ----------------------------------------------------------------------------------------------------


def test_a_firewall_that_opens_the_master_port_only(launch: Launch, cluster: Cluster) -> None:
    cluster["node3"].open_one_port(cluster["node1"], PORT)
    done = launch.start("--master-port", str(PORT), *ON_CPUS).finish()
    assert done.exit_code == 70
    said, probed, fix = done.words
    assert said == REFUSED
    address = cluster["node1"].address
    assert without_port(probed) == f"  node3: can't reach node1 at {address} port P: network is unreachable"
    assert fix == ("    fix: open all TCP ports between the hosts: some are open, but NCCL and gloo use any free one")


def without_port(line: str) -> str:
    return re.sub(r" port \d+", " port P", line)


def test_a_firewall_that_opens_all_but_the_master_port(launch: Launch, cluster: Cluster) -> None:
    cluster["node1"].block(PORT, is_silent=False)
    done = launch.start("--master-port", str(PORT), *ON_CPUS).finish()
    assert done.exit_code == 70
    assert done.words == [
        REFUSED,
        f"  node[2-3]: can't reach node 0 (node1) at {cluster['node1'].address} port {PORT}: no route to host",
        "    fix: open TCP between the hosts",
    ]


@pytest.mark.usefixtures("gpus")
def test_data_over_an_interface_that_leads_nowhere(launch: Launch) -> None:
    """Each host has a docker0 with the same address: the neighbour is never behind it."""
    done = launch.check("--env", "NCCL_SOCKET_IFNAME=docker", *ECHO)
    assert done.exit_code == 70
    assert [without_port(line) for line in done.table if line.startswith("!")] == [
        f"! node{number}   can't reach node{following} at 172.17.0.1 port P: connection refused"
        for number, following in ((1, 2), (2, 3), (3, 1))
    ]


# ---- what differs else ----------------------------------------------------------------------------------------------


def test_code_that_differs(launch: Launch, cluster: Cluster, train: str) -> None:
    for name in ("model.py", "src/data.py", "src/loss.py"):
        (launch.folder / name).parent.mkdir(exist_ok=True)
        (launch.folder / name).write_text("usual = 1\n")
    cluster["node2"].replace_file(str(launch.folder / "src" / "data.py"), "other = 2\n")
    done = launch.check("--cpu", "--nproc", "1", "--start=plain", train)
    assert done.exit_code == 0
    finding, fix, verdict = done.table[2:]
    assert re.fullmatch(r"  node2   the hash of its Python files is \w+, the others \w+", finding)
    assert fix.strip().startswith("fix: copy the same code to all hosts (rsync -rcni lists the files that differ)")
    assert verdict == "nothing would break a run, 1 warning"


def test_what_would_only_slow_a_run_is_a_line_of_it(launch: Launch, cluster: Cluster) -> None:
    """Little shared memory, and a resolver that is given up early."""
    for name in ("node1", "node3"):
        cluster[name].mount("/dev/shm", "-t", "tmpfs", "-o", "size=64m", "tmpfs")
    slow = cluster["node2"]
    nobody = slow.address.rpartition(".")[0] + ".99"
    slow.replace_file("/etc/hosts", "127.0.0.1 localhost\n")
    slow.replace_file("/etc/resolv.conf", f"nameserver {nobody}\n")
    done = launch.start("--nproc", "1", *shell('echo "RES_OPTIONS=$RES_OPTIONS"')).finish()
    assert done.exit_code == 0, done
    lines = done.words[2:-1]
    assert done.words[1].endswith("; 2 warnings"), done
    assert [f"  {warning}" for warning in done.record["warnings"]] == done.stderr.splitlines()[2:-1]
    assert lines == [
        "  node[1,3]: /dev/shm is 64 MB: data loaders with workers may fail; fix: pass --shm-size=8g to docker run",
        "  node2: a reverse DNS look-up takes N s or more; "
        "fix: correct /etc/resolv.conf, or list the hosts in /etc/hosts (this run sets RES_OPTIONS)",
    ]
    assert sorted(done.lines) == [
        "[node1:0] RES_OPTIONS=", "[node2:1] RES_OPTIONS=timeout:1 attempts:2", "[node3:2] RES_OPTIONS=",
    ]  # fmt: skip


def test_a_host_that_freezes_while_ports_are_tried(launch: Launch, cluster: Cluster) -> None:
    """It is told of once, and its neighbour is not blamed for finding no answer there."""
    host = cluster["node2"]
    cluster["node3"].drop_from(host)  # so that trying takes its time
    running = launch.start_check(*short_silence(), *short_connect(), *ON_CPUS)
    assert wait_until(lambda: len(listening_ports(host)) > 1)
    host.freeze()
    done = running.wait()
    assert done.exit_code == 69
    assert done.table == [
        "2 of 3 hosts responded (N s)",
        "  on all  CPUs",
        "! node2   no heartbeat for N s",
        "1 problem would break a run",
    ]


def listening_ports(host: Host) -> set[int]:
    rows = Path(f"/proc/{host.pids()[0]}/net/tcp").read_text().splitlines()[1:]
    return {int(row.split()[1].partition(":")[2], 16) for row in rows if row.split()[3] == "0A"}


# ---- left-overs -----------------------------------------------------------------------------------------------------


def abandon(running: Running, *hosts: Host) -> None:
    """Kill launcher, guardians, supervisors and shims at once, so that nobody cleans up; their ranks die with them."""
    keepers = [process.pid for host in hosts for process in host.processes() if not process.is_ours]
    for pid in keepers:  # stopped first: each would notice the others' death
        send_signal(pid, signal.SIGSTOP)
    running.process.kill()
    running.process.wait()
    for pid in keepers:
        send_signal(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(read_state(pid) not in ("", "Z", "X") for pid in keepers))


def folders(host: Host) -> list[Path]:
    """Return the runs' folders on a host."""
    return list(host.tmpdir.glob("launch-*"))


def test_left_overs_are_ended_and_a_run_beside_them_goes_on(launch: Launch, cluster: Cluster) -> None:
    hosts = [cluster["node1"], cluster["node2"]]
    lost = launch.start("--nproc", "1", *shell(f"setsid sh -c {shlex.quote(HARDY)} & wait"), hosts="node[1-2]")
    lost.wait_for(r"\] ready", 2)
    abandon(lost, *hosts)
    live = launch.start("--nproc", "1", *shell('echo "ready $RANK"; exec sleep 300'), hosts="node[2-3]")
    live.wait_for(r"\] ready", 2)
    assert without_pids(launch.check(*ON_CPUS).table[2:]) == [
        "  node1   2 leftover processes of run RUN (pid N, N)",
        "          fix: stop them with `launch clean`",
        "  node2   2 leftover processes of run RUN (pid N, N)",
        "          fix: stop them with `launch clean`",
        "nothing would break a run, 2 warnings",
    ]
    found = [
        "  node1: 2 leftover processes of run RUN: N (sh), N (sleep)",
        "  node2: 2 leftover processes of run RUN: N (sh), N (sleep)",
        "  node2: 1 process of run RUN (in progress, left alone): N (sleep)",
        "  node3: 1 process of run RUN (in progress, left alone): N (sleep)",
    ]
    done = launch.clean("--dry-run")
    assert done.exit_code == 0
    found += [f"  {host.name}: leftover directory: {host.tmpdir}/launch-RUN" for host in hosts]
    assert without_pids(done.words) == [*found, "launch: nothing was stopped or removed, because of --dry-run"]
    assert len(cluster.ranks()) == 6
    done = launch.clean()
    assert done.exit_code == 0
    assert without_pids(done.words) == [
        *found,
        "launch: removed 2 directories, 0 processes left on 3 hosts",
    ]
    assert not cluster["node1"].processes()
    assert [len(folders(host)) for host in cluster][:3] == [0, 1, 1]  # those of the run that goes on
    assert len(cluster.ranks()) == 2
    live.process.send_signal(signal.SIGINT)
    assert live.finish().exit_code == 130


def without_pids(lines: list[str]) -> list[str]:
    return [re.sub(r"\bpid \d+, \d+", "pid N, N", re.sub(r"\d+ \((?=s)", "N (", line)) for line in lines]


def test_a_host_that_can_not_be_asked_is_no_clean_one(launch: Launch, cluster: Cluster) -> None:
    """The others are checked and cleaned nevertheless."""
    cluster["node2"].block(22, is_silent=False)
    done = launch.clean(hosts="node[2-3]")
    assert done.exit_code == 69
    assert done.words[:2] == ["launch: nothing is left behind on 1 host", "launch: 1 host can't be used:"]
    done = launch.check(*ON_CPUS, hosts="node[2-3]")
    assert (done.exit_code, done.stderr, done.table[0]) == (69, "", "1 of 2 hosts responded (N s)")
    assert done.table[1].startswith("  on all  CPUs")
    assert done.table[2].startswith("! node2   no route to ")
