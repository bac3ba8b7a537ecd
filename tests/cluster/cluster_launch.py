"""`launch` as a subprocess on the hosts of a cluster, with short times: started, waited for by its words, and read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster_processes import wait_until

SILENCE_S = 2.0
STOP_TIMEOUT_S = 1.0
CONNECT_S = 2.0
DEADLINE_S = 40.0  # for what takes two seconds on an idle machine
PROMPT_S = 4.0  # 1.5 s is promised for processes that obey SIGTERM; a busy machine gets more
LADDER_S = STOP_TIMEOUT_S + 5.0  # promised for those that don't

PROGRAMS = Path(sys.executable).parent
TIMES = ("--silence", str(SILENCE_S), "--stop-timeout", str(STOP_TIMEOUT_S), "--connect-timeout", str(CONNECT_S))
# A rank that ends at SIGTERM, or when the test says go.
WAIT = 'echo "ready $RANK"; until [ -e go ]; do sleep 0.05; done; echo end'


def shell(script: str) -> list[str]:
    """Return the words that make each rank a shell script."""
    return ["--no-python", "sh", "-c", script]


def _even(text: str) -> str:
    text = re.sub(r"\d{8}-\d{6}(-\d+)?", "RUN", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", text)
    return re.sub(r"\b\d+(\.\d)? s\b", "N s", text)


@dataclass(frozen=True)
class Done:
    """What a launcher that has ended leaves: exit code, output, logs."""

    exit_code: int
    stdout: str
    stderr: str
    logs: Path

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def words(self) -> list[str]:
        """Return the launcher's own lines; what differs from run to run is RUN, N and HH:MM:SS."""
        return [line for line in _even(self.stderr).splitlines() if not line.startswith("[node")]

    @property
    def table(self) -> list[str]:
        """Return what `launch check` printed, with N for each time."""
        return _even(self.stdout).splitlines()

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.logs / "run.json").read_text())  # type: ignore[no-any-return]

    def log(self, node_rank: int) -> list[str]:
        return (self.logs / f"node_{node_rank}.log").read_text().splitlines()


@dataclass(frozen=True)
class Running:
    """A launcher that was started."""

    process: subprocess.Popen[bytes]
    folder: Path
    number: int
    cluster: Cluster

    @property
    def stdout(self) -> str:
        return (self.folder / f"stdout.{self.number}").read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return (self.folder / f"stderr.{self.number}").read_text("utf-8", "replace")

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Wait until `count` lines of stdout and stderr together match."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None
            found = len(re.findall(pattern, self.stdout + self.stderr, re.MULTILINE))
            assert found >= count or not has_ended, f"ended before {count} x {pattern!r}: {self}"
            return found >= count

        assert wait_until(is_there, DEADLINE_S), f"no {count} x {pattern!r} in time: {self}"

    def go(self) -> None:
        """Let the ranks that wait for this end."""
        (self.folder / "go").touch()

    def finish(self, within_s: float = DEADLINE_S) -> Done:
        """Wait until the launcher ends; by then nothing of the run may be left on hosts that can be reached."""
        done = self.wait(within_s)
        left = self.cluster.ranks()
        assert not left, f"left at the launcher's end: {left}{self}"
        return done

    def wait(self, within_s: float = DEADLINE_S) -> Done:
        """Wait until the launcher ends, whatever still runs then."""
        assert wait_until(lambda: self.process.poll() is not None, within_s), f"not ended in {within_s} s: {self}"
        return Done(self.process.returncode, self.stdout, self.stderr, self.folder / "logs" / "latest")

    def __str__(self) -> str:
        return f"\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-3000:]}"


@dataclass
class Launch:
    """Starts launchers for one test."""

    cluster: Cluster
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *words: str, hosts: str = "node[1-3]") -> Running:
        """Start a run; options in `words` come last and win."""
        return self._start("run", "--hosts", hosts, *words)

    def start_from(self, hostfile: str, *words: str) -> Running:
        """Start a run on the hosts of a hostfile, given by its text."""
        (self.folder / "hostfile").write_text(hostfile)
        return self._start("run", "--hostfile", "hostfile", *words)

    def start_waiting(self) -> Running:
        """Start two ranks each on node1 to node3 and wait until all are ready."""
        running = self.start("--nproc", "2", *shell(WAIT))
        running.wait_for(r"\] ready", 6)
        return running

    def exec(self, *words: str, hosts: str) -> Done:
        return self._start("exec", "--hosts", hosts, *words).finish()

    def test(self, number: int, *words: str, hosts: str) -> Running:
        """Start test-distributed with so many processes on each host."""
        options = ("--hosts", hosts, "--python", sys.executable, "--connect-timeout", str(CONNECT_S))
        return self._run([str(PROGRAMS / "test-distributed"), str(number)], *options, *words)

    def check(self, *words: str, hosts: str = "node[1-3]") -> Done:
        """Check hosts, whatever runs there."""
        return self.start_check(*words, hosts=hosts).wait()

    def start_check(self, *words: str, hosts: str = "node[1-3]") -> Running:
        return self._start("check", "--hosts", hosts, *words)

    def clean(self, *words: str, hosts: str = "node[1-3]") -> Done:
        """Clean up, whatever runs beside it."""
        return self._start("clean", "--hosts", hosts, *words).wait()

    def end(self) -> None:
        """Kill launchers that a test has left."""
        for running in self.started:
            running.process.kill()
            running.process.wait()

    def _start(self, command: str, *words: str) -> Running:
        return self._run([str(PROGRAMS / "launch"), command], *TIMES, *words)

    def _run(self, command: list[str], *words: str) -> Running:
        number = len(self.started)
        argv = [*command, "--ssh-config", str(self.cluster.ssh_config), *words]
        env = {**os.environ, "PYTHONPATH": ""}
        with (self.folder / f"stdout.{number}").open("wb") as out, (self.folder / f"stderr.{number}").open("wb") as err:
            process = subprocess.Popen(argv, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.started.append(Running(process, self.folder, number, self.cluster))
        return self.started[-1]
