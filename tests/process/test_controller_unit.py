"""A detached run that takes itself up: after its controller's death, and after a power cut of all its hosts.

The controller and the agents are real, on this machine; the test is the boot, which runs what the units have.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S, slowed
from machines.processes import wait_until
from node_process import find_marked

from launcher.controller.orders import Control
from launcher.controller.planting import Planting
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.output.output_streams import OutputStreams
from launcher.runs.run_list import ListedRun, RunList
from launcher.runs.run_request import RunOptions
from launcher.transports.agents.credentials import make_credentials
from launcher.transports.process_channel import LocalTransport

RUN = "20261120-091233"
MARK = "CONTROLLER_UNIT_MARK"
HOSTS = (Host("n1"), Host("n2"))
STREAMS = OutputStreams(frozenset(), is_one_file=False, with_color=False, columns=None)
# Two attempts last, the third one succeeds.
SCRIPT = 'echo "attempt $LAUNCH_ATTEMPT"; [ $LAUNCH_ATTEMPT = 2 ] || exec sleep 600'
TOOLS = {"loginctl": "#!/bin/sh\necho Linger=yes\n", "systemctl": "#!/bin/sh\n"}


def list_marked(mark: str) -> list[int]:
    """Return the processes of the run: agents, controllers, helpers, ranks, and what waits to be one of them."""
    return [pid for pid in find_marked(mark, MARK) if pid != os.getpid()]


def lose_power(mark: str) -> None:
    while pids := list_marked(mark):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def list_files(tmp_path: Path) -> list[str]:
    """Return what a boot could start."""
    files = [Path(base, name) for base, _, names in os.walk(tmp_path) for name in names]  # rglob fails if one goes
    return sorted(path.name for path in files if path.suffix == ".service" or path.parent.name == "agents")


def test_a_run_that_takes_itself_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, home, tools, tmpdir = secrets.token_hex(8), tmp_path / "home", tmp_path / "bin", tmp_path / "tmp"
    for folder in (home, tools, tmpdir):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(tmpdir))  # what a power cut leaves there is not for other tests to find
    for name, script in TOOLS.items():
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    for name, value in (("HOME", str(home)), ("PATH", f"{tools}:{os.environ['PATH']}"), (MARK, mark)):
        monkeypatch.setenv(name, value)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", SCRIPT))
    times = Timeouts(DEADLINE_S, silence_s=slowed(2.0), stop_timeout_s=0.5)
    job = Job(program, nproc=1, cpu=True, timeouts=times, workdir=str(tmp_path), own_python=sys.executable)
    options, credentials = RunOptions(with_checks=False, restarts=3), make_credentials(2)
    request = Control(job, HOSTS, (), options, {}, credentials, RUN, is_quiet=True, survives_reboots=True)
    planting = Planting(Host("n1"), request, LocalTransport(), [sys.executable], STREAMS)
    runs = RunList(home / ".local" / "state" / "launch" / "runs")

    def look() -> ListedRun:
        run = runs.find(RUN)
        assert isinstance(run, ListedRun)
        return run

    def read_log(name: str) -> str:
        with contextlib.suppress(OSError):
            return (look().folder / name).read_text()
        return ""

    try:
        assert planting.gather(lambda text: None) == RUN
        assert planting.attach() is None
        agents = f"{RUN}.{credentials.fingerprint[:8]}"
        units = sorted(f"launch-{agents}.{word}.service" for word in ("0", "1", "controller"))
        assert wait_until(lambda: set(units) <= {*list_files(tmp_path)})

        os.kill(look().controller.pid, signal.SIGKILL)
        assert wait_until(lambda: "attempt 1" in read_log("node_1.log")), read_log("launch.log")

        (tools / "systemctl").write_text("#!/bin/sh\necho stopping\n")
        os.kill(look().controller.pid, signal.SIGTERM)
        line = "launch: this host shuts down; its boot unit continues the run after that"
        assert wait_until(lambda: line in read_log("launch.log")), read_log("launch.log")
        lose_power(mark)
        assert wait_until(lambda: not look().is_alive)  # the kernel ends the threads of a process one by one
        folder = home / ".config" / "systemd" / "user"
        lines = [line for unit in units for line in (folder / unit).read_text().splitlines() if "ExecStart=" in line]
        commands = [shlex.split(line.partition("=")[2]) for line in lines]
        env = {"HOME": str(home), MARK: mark}
        null = subprocess.DEVNULL
        booted = [subprocess.Popen(words, env=env, stdin=null, stdout=null, stderr=null) for words in commands]
        assert [process.wait() for process in booted] == [0] * 3, read_log("launch.log")
        end = look().end
        assert end is not None
        assert end.exit_code == 0
        assert wait_until(lambda: not list_marked(mark))
        assert [name for name in list_files(tmp_path) if not name.endswith(".lock")] == []
        record = json.loads(read_log("run.json"))
        assert [attempt["outcome"] for attempt in record["attempts"]] == ["controller", "controller", "succeeded"]
    finally:
        planting.close()
        lose_power(mark)
