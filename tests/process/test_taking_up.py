"""A detached run whose controller dies is taken up by another one: a real controller and agents, on this machine."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S, slowed
from machines.processes import wait_until

from launcher.cli.stop import stop
from launcher.controller.orders import Control
from launcher.controller.planting import Planting
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.output.output_streams import OutputStreams
from launcher.runs.kept_run import start_argv, start_controller
from launcher.runs.run_list import ListedRun, RunList
from launcher.runs.run_request import RunOptions
from launcher.runs.standing import Standing
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.process_channel import LocalTransport

RUN = "20261120-091233"
HOSTS = (Host("n1"), Host("n2"))
STREAMS = OutputStreams(frozenset(), is_one_file=False, with_color=False, columns=None)
# The first attempt lasts; in the second one rank 0 fails, alone, so that it has printed; the third one succeeds.
SCRIPT = """printf "attempt $LAUNCH_ATTEMPT"
case $LAUNCH_ATTEMPT$RANK in 10) exit 3;; [01]?) echo; exec sleep 600;; esac; echo"""

BEGUN = "import os, sys; __file__ = sys.argv[1]; code = open(__file__).read(); os.unlink(__file__); exec(code)"


@dataclass
class Started:
    """A run that has left its terminal."""

    place: Path

    def look(self) -> ListedRun:
        run = RunList(self.place.parent).find(RUN)
        assert isinstance(run, ListedRun)
        return run

    def kill(self) -> None:
        os.kill(self.look().controller.pid, signal.SIGKILL)
        assert wait_until(lambda: not self.look().is_alive)

    def standing(self) -> Standing:
        found = pickle.loads((self.place / "kept" / "standing").read_bytes()[64:])
        assert isinstance(found, Standing)
        return found

    def log(self) -> list[str]:
        return [line[24:] for line in (self.look().folder / "launch.log").read_text().splitlines()]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Yield a run of two hosts whose first attempt is under way, and which is kept."""
    (tmp_path / "TMPDIR").mkdir()
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho stopping\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", SCRIPT))
    times = Timeouts(DEADLINE_S, silence_s=slowed(2.0), stop_timeout_s=0.5)
    job = Job(program, nproc=1, cpu=True, timeouts=times, workdir=str(tmp_path), own_python=sys.executable)
    options = RunOptions(with_checks=False, restarts=3)
    request = Control(job, HOSTS, (), options, {"name": "long"}, make_credentials(2), RUN, is_quiet=True)
    planting = Planting(Host("n1"), request, LocalTransport(), [sys.executable], STREAMS)
    run = Started(tmp_path / "XDG_STATE_HOME" / "launch" / "runs" / RUN)
    try:
        assert planting.gather(lambda text: None) == RUN
        assert planting.attach() is None
        yield run
    finally:
        with suppress(UsageError, ProcessLookupError):
            os.kill(run.look().controller.pid, signal.SIGKILL)
        planting.close()


def test_a_run_outlives_its_controllers(started: Started, capfd: pytest.CaptureFixture[str]) -> None:
    """One is killed while an attempt is under way, one ends with its host between two; of two that follow one does."""
    assert not started.look().can_be_taken_up
    with pytest.raises(UsageError, match=f"run {RUN} is controlled"):
        start_controller(started.look(), STREAMS)
    started.kill()
    assert started.look().can_be_taken_up
    start = partial(subprocess.Popen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    both = [start(start_argv(started.place)) for _ in range(2)]
    said = sorted(process.stdout.read() for process in both if process.stdout is not None)
    assert said[0] == f"launch: run {RUN} is controlled by another process\n  fix: see launch ps\n"
    assert said[1] == f"launch: the controller of run {RUN} died; controller 2 takes it up\n"
    assert wait_until(lambda: sum(process.poll() is None for process in both) == 1)
    assert wait_until(lambda: len(started.standing().endings) == 2)
    os.kill(started.look().controller.pid, signal.SIGTERM)  # during the pause, as a host does that reboots
    assert wait_until(lambda: not started.look().is_alive)
    for process in both:
        process.wait()
    capfd.readouterr()
    assert start_controller(started.look(), STREAMS) == 0
    assert capfd.readouterr().err == f"launch: the controller of run {RUN} died; controller 3 takes it up\n"
    assert wait_until(lambda: started.standing().idle_controllers == 1)  # until an attempt begins
    kept = started.place / "kept"
    shutil.copytree(kept, started.place / "copy")
    assert wait_until(lambda: not started.look().is_alive)
    run = started.look()
    assert run.end is not None
    assert (run.end.exit_code, run.is_kept) == (0, False)
    record = json.loads((run.folder / "run.json").read_text())
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["controller", "error", "succeeded"]
    assert record["name"] == "long"
    log = started.log()
    follows = [re.sub(r"in \d+ s|\(.*", "", line) for line in log if "restarting" in line or "continuing" in line]
    assert follows == [
        "launch: restarting , when nothing can be alive any more: its controller died ",
        "launch: 0 processes left on 2 hosts; restarting : a rank failed ",
        "launch: continuing , when nothing can be alive any more",
    ]
    assert sum("takes it up" in line for line in log) == 2
    assert f"launch: this host shuts down; launch rejoin {RUN} continues the run after that" in log
    assert log[-1].startswith("launch: finished in ")
    # Its controller may die once it has ended the run, and before it removes what was kept.
    (started.place / "copy").rename(kept)
    assert subprocess.run(start_argv(started.place), check=False).returncode == 0
    assert not kept.exists()
    assert started.look().end == run.end
    assert started.log() == log
    assert re.findall(r"attempt \d", (run.folder / "node_0.log").read_text()) == ["attempt 0", "attempt 1", "attempt 2"]


def test_what_is_torn_is_never_used(started: Started, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that can't go on can still be stopped, and a stop that was asked for ends it for good."""
    started.kill()
    before = started.place.parent / "before"
    shutil.copytree(started.place / "kept", before)
    for name in ("code", "standing"):  # the first one is looked at by `start.py`, each other one as this is
        path = started.place / "kept" / name
        whole = path.read_bytes()
        os.truncate(path, len(whole) // 2)
        assert start_controller(started.look(), STREAMS) == 1, name
        again = "start the run again: it continues from its last checkpoint"
        assert capfd.readouterr().err == f"launch: {path} is damaged\n  fix: {again}\n"
        path.write_bytes(whole)
    assert stop(started.look(), is_now=False) == 0
    said = f"launch: stopped by you; the controller of run {RUN} died before its last process had ended\n"
    assert capfd.readouterr().err == said
    run = started.look()
    assert run.end is not None
    assert (run.end.is_stopped, run.is_kept) == (True, False)
    with pytest.raises(LauncherError, match="has ended"):
        start_controller(run, STREAMS)
    # A rejoin that began a moment before the stop, when all was there.
    kept, ended = started.place / "kept", f"launch: run {RUN} has ended\n  fix: see launch ps for those that run\n"
    kept.mkdir()
    for parts in (("start.py",), ("start.py", "code")):
        for name in parts:
            shutil.copy(before / name, kept)
        *argv, path = start_argv(started.place)
        done = subprocess.run([*argv, "-c", BEGUN, path], check=False, capture_output=True, text=True)
        assert (done.returncode != 0, done.stdout + done.stderr) == (True, ended)
