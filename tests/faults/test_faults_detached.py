"""A run that node1 controls continues without the terminal where it was started, and ends with its controller."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from fault_launch import (
    AT_GO,
    FAILS,
    OF_EVERY_KIND,
    READY,
    FaultLaunch,
    ask,
    find_process,
    ranks,
    said,
    short_connect,
    short_silence,
)
from machines.processes import CENSUS_POLL_S, read_name, read_state, wait_until
from machines.slurm import LOGIN, NODES
from ways import WAYS

pytestmark = pytest.mark.parametrize("way", [way for way in WAYS if way.name == "detached"], ids=["detached"])

# Each rank writes bytes of all kinds, and then a line for as long as there is no file `go`.
WRITES = rf"""{READY}; printf '\303\251 \377\r50%%\r100%%\n'; printf 'oops\n' >&2
    until [ -e go ]; do echo $((n += 1)); sleep 0.1; done; printf end"""


def find_run(launch: FaultLaunch) -> dict[str, Any]:
    """Return what `launch ps` says of the run."""
    (row,) = (row for row in json.loads(ask(launch, "ps", "--json").stdout) if row["run"] in launch.started[-1].stderr)
    return dict(row)


def test_the_terminal_is_killed(launch: FaultLaunch) -> None:
    """What a rank wrote comes back byte for byte, with the output of before and after."""
    running = launch.start_ready(*ranks(WRITES))
    launch.launcher().kill()
    running.wait()
    assert find_run(launch)["state"] == "running"
    running.go()
    waited = ask(launch, "wait")
    assert re.search(r"^launch: finished in .*, 4 ranks succeeded, 0 processes left on 2 hosts$", waited.stderr, re.M)
    reading = launch.slurm.start("launch", "logs", "--rank", "3", cwd=launch.folder, stdout=subprocess.PIPE)
    assert reading.stdout is not None
    lines = reading.stdout.read().split(b"\n")
    numbers = lines[2:-1]
    assert lines[:2] + lines[-1:] == [b"ready 3", b"\xc3\xa9 \xff\r50%\r100%", b"end"]
    assert numbers == [b"%d" % number for number in range(1, len(numbers) + 1)]
    launch.wait_until_clean()


def test_all_commands_without_the_terminal(launch: FaultLaunch) -> None:
    """Also in `launch logs` and `launch fetch`: the bytes are those on the host that controls the run."""
    running = launch.start(*ranks(WRITES))
    done = running.wait()
    assert done.exit_code == 0, str(done)
    assert said(done)[2:] == [
        "launch: all ranks run; run RUN continues without this terminal",
        "  launch attach   watch it",
        "  launch stop     stop it",
        "  launch wait     wait for it, and get its exit code",
        "  launch fetch    copy its logs to this machine",
    ]
    # No file of this user's tells `launch ps` about it, so that it could be typed on another machine.
    words = ("env", "XDG_STATE_HOME=/nowhere", "launch", "ps", "--json", "--hosts", "node1")
    config = ("--ssh-config", str(launch.slurm.cluster.ssh_config))
    (row,) = json.loads(launch.slurm.run(*words, *config, cwd=launch.folder).stdout)
    assert (row["state"], row["controller"], row["nodes"]) == ("running", "node1", [2, 2])
    assert f"run {row['run']} continues" in done.stderr
    watching = launch.slurm.start("launch", "attach", cwd=launch.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None
    assert any(re.match(rb"\[node2:3\] \d+$", line) for line in watching.stdout)
    stopped = ask(launch, "stop")
    *waiting, last = stopped.stderr.splitlines()
    assert re.match(r"launch: stopped by you after .*, 0 processes left on 2 hosts$", last)
    assert waiting in ([], ["launch: waiting for node1"])
    assert watching.wait() == 130
    assert ask(launch, "wait", code=130).stderr.splitlines()[-1] == last
    page = launch.folder / ask(launch, "report").stdout.rstrip("\n")
    assert page.name == f"{row['run']}-report.html" and "<title>stopped: " in page.read_text("utf-8")
    ask(launch, "fetch")
    for node in range(2):
        (copy, log) = (base / row["run"] / f"node_{node}.log" for base in (launch.folder / "logs", launch.logs))
        assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(log.read_bytes()).digest()
    launch.wait_until_clean()


def test_the_controller_is_killed(launch: FaultLaunch) -> None:
    """Its hosts end the run, and it is told from one that ended."""
    running = launch.start_ready("--restarts", "1", *ranks(**OF_EVERY_KIND))
    find_process(launch.hosts[0], "launch").kill()
    done = running.wait()
    launch.wait_until_clean()
    assert done.exit_code == 69, str(done)
    assert "launch was killed there" in done.stderr
    assert find_run(launch)["state"] == "killed"
    assert "its launch was killed" in ask(launch, "wait", code=137).stderr


def test_the_host_of_the_controller_loses_power(launch: FaultLaunch) -> None:
    """Everything ends on the other hosts, and nobody says how the run is doing before its host is back."""
    launch.start_ready(*short_silence(), *ranks(**OF_EVERY_KIND))
    launch.hosts[0].power_off()
    assert wait_until(lambda: not launch.last.processes(), poll_s=CENSUS_POLL_S), launch.last.processes()
    row = find_run(launch)
    assert (row["state"], row["last_line"]) == ("unknown", "doesn't answer")
    with contextlib.suppress(ValueError):  # it may have given the host up by itself
        launch.launcher().kill()


def test_the_host_of_the_controller_reboots(launch: FaultLaunch) -> None:
    """The run ends everywhere, at once where the port refuses, and is started again by hand."""
    running = launch.start("--connect-timeout", "10", "--restarts", "5", *short_silence(), *ranks(AT_GO))
    assert running.wait().exit_code == 0, str(running)
    run, host = find_run(launch)["run"], launch.hosts[0]
    host.power_off()
    host.power_on()
    host.replace_file("/proc/sys/kernel/random/boot_id", "boot 1\n")  # all hosts have one kernel
    host.wait_for_sshd()
    row = find_run(launch)
    assert (row["state"], row["last_line"]) == ("killed", f"node1 has rebooted; launch again {run} runs it again")
    launch.wait_until_clean()
    again = launch.slurm.run("launch", "again", run, cwd=launch.folder)
    assert again.returncode == 0, again.stderr
    assert f"launch: again run {run}, which was killed" in again.stderr
    running.go()
    assert "4 ranks succeeded, 0 processes left" in ask(launch, "wait").stderr
    launch.wait_until_clean()


def test_a_host_reboots(launch: FaultLaunch) -> None:
    """It rejoins the run by itself, where the controller's host can log in there."""
    launch.hosts[0].replace_file("/etc/ssh/ssh_config", launch.slurm.cluster.ssh_config.read_text())
    running = launch.start("--connect-timeout", "10", "--restarts", "5", *short_silence(), *ranks(AT_GO))
    assert running.wait().exit_code == 0, str(running)
    launch.last.power_off()
    launch.last.power_on()
    launch.last.replace_file("/proc/sys/kernel/random/boot_id", "boot 1\n")  # all hosts have one kernel
    launch.last.wait_for_sshd()
    log = launch.logs / "latest"
    assert wait_until(lambda: "launch: node2 is connected again after " in (log / "launch.log").read_text())
    assert wait_until(lambda: (log / "node_1.log").read_text().count("] ready 3") == 2)
    running.go()
    ask(launch, "wait")
    launch.wait_until_clean()


def test_the_cable_of_the_terminal_is_out(launch: FaultLaunch) -> None:
    """The run does not notice, and the terminal shows all that was written meanwhile."""
    count = f"{READY}; until [ -e go ]; do echo $((n += 1)); sleep 0.05; done"
    running = launch.start_ready(*short_silence(), *ranks(r0=count, r3=count))
    login = launch.slurm.cluster[LOGIN]
    login.cut()
    log = launch.logs / "latest" / "node_1.log"
    size = log.stat().st_size
    assert wait_until(lambda: log.stat().st_size > size + 2000), "more than --silence"
    login.plug()
    running.go()
    launch.launcher()
    os.kill(launch.launcher().pid, signal.SIGINT)
    done = launch.finish(running)
    found = [line for line in done.lines if re.fullmatch(r"\[node2:3\] \d+", line)]
    assert found == [f"[node2:3] {number}" for number in range(1, len(found) + 1)]


def test_a_login_that_takes_its_processes_with_it(launch: FaultLaunch) -> None:
    """As with KillUserProcesses: a second login finds that an agent is gone."""

    def take() -> None:
        agent = find_process(launch.last, "launch-agent")

        def is_logged_out() -> bool:
            return sum(read_name(pid).startswith("sshd") for pid in launch.last.pids()) == 1

        wait_until(is_logged_out, poll_s=CENSUS_POLL_S)
        agent.kill()

    running = launch.start_ready(*ranks())
    taker = threading.Thread(target=take)
    taker.start()
    done = running.wait()
    taker.join()
    assert done.exit_code == 70, str(done)
    assert said(done)[-3] == "launch: lost node2 of run RUN as the login there ended", str(done)
    launch.wait_until_clean()


def test_a_run_ends_as_it_leaves_its_terminal(launch: FaultLaunch) -> None:
    """The second login, which looks whether a host has ended the processes of the first, finds none any more."""
    running = launch.start_ready(*ranks(AT_GO, r3=FAILS))
    launcher, controller = launch.launcher(), find_process(launch.slurm.cluster[NODES[0]], "launch")
    os.kill(launcher.pid, signal.SIGSTOP)
    assert wait_until(lambda: Path(f"/proc/{controller.pid}/fd/1").readlink() == Path(os.devnull)), "it has not left"
    running.go()
    assert wait_until(lambda: read_state(controller.pid) in ("", "Z"), poll_s=CENSUS_POLL_S)
    os.kill(launcher.pid, signal.SIGCONT)
    done = launch.finish(running)
    assert done.exit_code == 7, str(done)
    assert said(done)[-1] == "launch: run RUN has ended meanwhile, exit code 7 (launch attach shows how)", str(done)
    assert "launch: the logs are on node1; fix: copy them with launch fetch" in done.stderr


def test_a_controller_that_can_t_be(launch: FaultLaunch) -> None:
    done = launch.start("--controller", "node9", *ranks()).wait()
    assert done.exit_code in {2, 69}
    assert not launch.ranks()
    assert "the name node9 is not known" in done.stderr


def test_ctrl_c_before_anything_runs(launch: FaultLaunch) -> None:
    slow = "setup() { :; }; sleep 300"
    running = launch.start("--setup", slow, *ranks(AT_GO))
    running.wait_for("is controlled from node1")
    os.kill(launch.launcher().pid, signal.SIGINT)
    done = running.wait()
    assert done.exit_code == 130, str(done)
    launch.wait_until_clean()
    assert not list(launch.logs.glob("2*")), "a run that never started leaves no logs"
    rows = json.loads(ask(launch, "ps", "--json").stdout)
    assert not [row for row in rows if row["run"] in running.stderr], "nor is it listed"


def test_a_host_that_can_t_reach_the_controller(launch: FaultLaunch) -> None:
    """A firewall between the hosts is found before anything is started."""
    launch.last.refuse_peer(launch.hosts[0])
    done = launch.start(*short_connect(), *ranks()).wait()
    assert (done.exit_code, done.stdout) == (69, ""), str(done)
    assert re.search(r"^  node2: it can't reach node1: \S+ port \d+: no route to host", done.stderr, re.MULTILINE)
    assert "    fix: let the hosts connect to node1, or use --controller here\n" in done.stderr
    launch.wait_until_clean()
