"""`launch` as a subprocess on the hosts of a cluster, with short times."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from machines.cluster import Cluster
from machines.launches import start_launch
from machines.patience import NEVER_S, slowed
from machines.runs import Done, Running

# Nobody waits for a silence but where a test says so, and who ignores SIGTERM is soon killed.
TIMES = ("--silence", f"{NEVER_S:g}", "--stop-timeout", "1")


def short_silence() -> tuple[str, str]:
    """Return the words for a silence that is waited for."""
    return "--silence", f"{slowed(2.0):g}"


def short_connect() -> tuple[str, str]:
    """Return the words for a host that is waited for and does not come."""
    return "--connect-timeout", f"{slowed(2.0):g}"


@dataclass
class Launch:
    """Starts launchers for one test."""

    cluster: Cluster
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *words: str, hosts: str = "node[1-3]") -> Running:
        """Start a run; options in `words` come last and win."""
        return self._start("run", "--hosts", hosts, *words)

    def exec(self, *words: str, hosts: str) -> Done:
        return self._start("exec", "--hosts", hosts, *words).finish()

    def test(self, number: int, *words: str, hosts: str) -> Running:
        """Start test-distributed with so many processes on each host."""
        options = ("--hosts", hosts, "--python", sys.executable)
        return self._run("test-distributed", str(number), *options, *words)

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
        return self._run("launch", command, *TIMES, *words)

    def _run(self, program: str, word: str, *words: str) -> Running:
        number = len(self.started)
        words = (word, "--ssh-config", str(self.cluster.ssh_config), *words)
        env = {**os.environ, "PYTHONPATH": ""}
        with (self.folder / f"stdout.{number}").open("wb") as out, (self.folder / f"stderr.{number}").open("wb") as err:
            process = start_launch(*words, cwd=self.folder, env=env, stdout=out, stderr=err, program=program)
        self.started.append(Running(process, self.folder, number, self.cluster))
        return self.started[-1]
