"""Agents that their hosts start again after a boot. The test is the boot: it runs what a unit or a crontab has."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_fleet import MARK, RUN, Fleet, Wire
from machines.launches import run_launch
from machines.patience import DEADLINE_S, NEVER_S
from node_process import wait_until

from launcher.hosts.host import Host
from launcher.node import boot_units
from launcher.runs.run_list import RemoteRun, RunList, Way, claim_place
from launcher.runs.run_rows import RunRow
from launcher.transports.base import STDOUT

A = Host("n1")
LOGINCTL = "#!/bin/sh\necho Linger=yes\n"
SYSTEMCTL = "#!/bin/sh\n"
REFUSES = "#!/bin/sh\necho 'You (ann) are not allowed to use this program (crontab)' >&2\nexit 1\n"
# What `launch ps --json` says of a run that has ended.
ENDED = RunRow(
    run=RUN, state="finished", exit_code=0, attempts=1, age_s=1.5, nodes=(1,), launch_host="laptop", controller="n1",
    can_continue=False,
)  # fmt: skip
Tools = Callable[..., Path]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Return a fleet of one host."""
    made = Fleet("n1")
    yield made
    made.close()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Give all agents an empty home directory, and these programs instead of the machine's."""
    folder, home = tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/of-a-login")
    monkeypatch.setenv("KEPT", "a login's \udcff")

    def give(**scripts: str) -> Path:
        for name, script in scripts.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        return home

    return give


def start(fleet: Fleet, **fields: Any) -> None:
    fleet.start(survives=True, **fields)


def kept(fleet: Fleet, home: Path) -> list[str]:
    """Return what a boot could start."""
    files = [*home.rglob("*.service"), *Path(fleet.state.name).rglob("*.py*")]
    return sorted(path.suffix for path in files)


def lose_power(fleet: Fleet) -> None:
    """Kill all that runs."""
    while pids := fleet.pids():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(pids) & set(fleet.pids()))
    wait_until(fleet.hub.missing)


def boot(fleet: Fleet, home: Path) -> list[subprocess.Popen[bytes]]:
    """Start what the units have, with the environment of a boot."""
    units = (home / ".config" / "systemd" / "user").glob("*.service")
    commands = [line.partition("=")[2] for unit in units for line in unit.read_text().splitlines() if "ExecS" in line]
    env = {"HOME": str(home), MARK: fleet.mark}
    return [subprocess.Popen(shlex.split(command), env=env) for command in commands]


def test_a_reboot(fleet: Fleet, tools: Tools) -> None:
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    start(fleet)
    assert fleet.hub.wait_for_units(DEADLINE_S) == {}
    files = kept(fleet, home)
    assert files == [".py", ".service"]
    lose_power(fleet)
    (booted,) = boot(fleet, home)
    assert fleet.hub.wait_for_all(DEADLINE_S) == []
    (found,) = fleet.hub.take_returns()
    assert (found.host, found.has_rebooted) == ("n1", False)
    command = "ulimit -n; umask; echo $SSH_AUTH_SOCK; echo $KEPT; ps -o comm= $PPID"
    channel = fleet.hub.open_transport().open(A, command, DEADLINE_S)
    lines = b""
    while (piece := channel.read())[0] == STDOUT:
        lines += piece[1]
    limit = subprocess.run(["sh", "-c", "ulimit -n; umask"], capture_output=True, check=True).stdout
    assert lines == limit + b"\na login's \xff\nlaunch-agent\n"
    (again,) = boot(fleet, home)
    assert again.wait() == 0, "it runs once"
    assert kept(fleet, home) == files
    lose_power(fleet)
    booted.wait()
    (booted,) = boot(fleet, home)
    assert fleet.hub.wait_for_all(DEADLINE_S) == []
    fleet.hub.close(DEADLINE_S)
    assert (booted.wait(), kept(fleet, home), fleet.pids()) == (0, [], [])


def test_a_host_that_starts_nothing(fleet: Fleet, tools: Tools) -> None:
    home = tools(loginctl=LOGINCTL.replace("yes", "no"), crontab=REFUSES)
    start(fleet)
    (why,) = fleet.hub.wait_for_units(DEADLINE_S).values()
    assert why.startswith("this user doesn't linger, and ")
    assert kept(fleet, home) == []
    fleet.hub.close(DEADLINE_S)
    wait_until(lambda: not fleet.pids())


def test_an_agent_that_gives_up_is_not_started_again(fleet: Fleet, tools: Tools) -> None:
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    way = Wire(fleet.port)
    fleet.plant("n1", [("127.0.0.1", way.port)], survives=True, redial_s=0.5)
    assert fleet.hub.wait_for_all(DEADLINE_S) == []
    fleet.hub.go()
    assert fleet.hub.wait_for_units(DEADLINE_S) == {}
    assert kept(fleet, home) == [".py", ".service"]
    way.cut()
    way.close()
    wait_until(lambda: not fleet.pids())
    assert kept(fleet, home) == []


def test_a_host_that_comes_back_when_the_run_is_over(fleet: Fleet, tools: Tools, old_python: str) -> None:
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    start(fleet, python=old_python)
    assert fleet.hub.wait_for_units(DEADLINE_S) == {}
    lose_power(fleet)
    wait_until(lambda: fleet.hub.missing() == ["n1"])
    closing = threading.Thread(target=fleet.hub.close, args=(DEADLINE_S,))
    closing.start()
    (booted,) = boot(fleet, home)
    booted.wait()
    closing.join()
    assert (kept(fleet, home), fleet.pids()) == ([], [])


def test_a_host_that_comes_back_when_nobody_answers_any_more(fleet: Fleet, tools: Tools) -> None:
    """As one that was off while the run was stopped. Where the run continues, its controller logs in."""
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    start(fleet)
    assert fleet.hub.wait_for_units(DEADLINE_S) == {}
    lose_power(fleet)
    fleet.hub.close(0)
    (file,) = Path(fleet.state.name).rglob("*.py")
    text = file.read_text("utf-8", "surrogateescape")
    waits = f'"boot_s": {NEVER_S}'  # as long as --connect-timeout
    assert text.count(waits) == 1
    file.write_text(text.replace(waits, '"boot_s": 0.5'), "utf-8", "surrogateescape")
    (booted,) = boot(fleet, home)
    assert booted.wait(DEADLINE_S) == 0
    assert (kept(fleet, home), fleet.pids()) == ([], [])


def test_clean_ends_a_helper_whose_run_is_over(
    fleet: Fleet, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that looks for its controller after a boot, for as long as --connect-timeout says."""
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    start(fleet)
    assert fleet.hub.wait_for_units(DEADLINE_S) == {}
    lose_power(fleet)
    fleet.hub.close(0)
    (booted,) = boot(fleet, home)
    monkeypatch.setenv("XDG_STATE_HOME", fleet.state.name)
    (name,) = boot_units.find()
    wait_until(lambda: boot_units.is_running(name))

    def clean(*words: str) -> list[str]:
        done = run_launch("clean", "--hosts", "localhost", *words, cwd=tmp_path, code=0)
        return [line for line in done.stderr.splitlines() if "unit" in line or "left behind" in line]

    alone = f"  localhost: boot unit of run {RUN} (left alone: the run removes it)"
    assert clean() == [alone, "launch: nothing is left behind on 1 host"]
    runs = RunList.of_user(os.environ)
    assert claim_place(runs.base, RUN)
    runs.add(RemoteRun(RUN, Way("n1"), began_at=time.time()))
    assert clean() == [alone, "launch: nothing is left behind on 1 host"]
    (run,) = runs.read_all()
    assert isinstance(run, RemoteRun)
    runs.note_seen(run, ENDED)
    left = f"  localhost: leftover boot unit of run {RUN}: {name}"
    assert clean("--dry-run") == [left, "launch: 1 boot unit would be removed"]
    assert (booted.poll(), kept(fleet, home)) == (None, [".py", ".service"])
    assert clean() == [left, "launch: removed 1 boot unit, 0 processes left on 1 host"]
    booted.wait(DEADLINE_S)
    assert (kept(fleet, home), fleet.pids()) == ([], [])
