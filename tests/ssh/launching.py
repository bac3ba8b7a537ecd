"""`launch` as a subprocess in a folder of its own: started, waited for by its words, signalled, and read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from machines.launches import PROGRAM, start_launch
from machines.patience import NEVER_S
from machines.runs import Done, Running
from machines.warm import WarmProcess
from ssh_hosts import SshHosts

RANK_FILE = Path(__file__).with_name("rank.py")
# Nobody waits for a silence here, and who ignores SIGTERM is soon killed.
TIMES = ("--silence", f"{NEVER_S:g}", "--stop-timeout", "1")

# A test that touches the transport runs over each; the others run over the first alone.
TRANSPORTS = ("fabric", "ssh")
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


def rank(*behaviours: str) -> list[str]:
    """Return the words that make each rank behave as rank.py says: `rank("wait", "2=fail")`."""
    return ["--no-python", sys.executable, "-IS", str(RANK_FILE), *behaviours]


@dataclass
class Launch:
    """Starts launchers for one test."""

    hosts: SshHosts
    folder: Path
    ssh_config: Path
    transport: str = TRANSPORTS[0]
    started: list[Running] = field(default_factory=list)

    @property
    def hosts_words(self) -> tuple[str, ...]:
        """Return the words that name both hosts and the way to them."""
        return ("--hosts", "node1,node2", "--ssh-config", str(self.ssh_config), "--transport", self.transport)

    def start(self, *words: str, **how: Any) -> Running:
        """Start a run on both hosts with two CPU processes each; options in `words` come last and win."""
        return self.start_command("run", *self.hosts_words, "--nproc", "2", "--cpu", *TIMES, *words, **how)

    def run(self, *words: str, **how: Any) -> Done:
        return self.start(*words, **how).finish()

    def run_command(self, *words: str, **how: Any) -> Done:
        """Run `launch` with these words and no others."""
        return self.start_command(*words, **how).finish()

    def start_exec(self, *words: str, **how: Any) -> Running:
        return self.start_command("exec", *self.hosts_words, *TIMES, *words, **how)

    def exec(self, *words: str) -> Done:
        return self.start_exec(*words).finish()

    def start_command(
        self, *words: str, program: Path = PROGRAM, env: Mapping[str, str] | None = None, prefix: Sequence[str] = (),
        stdout: int | IO[bytes] | None = None, stderr: int | IO[bytes] | None = None, **how: Any,
    ) -> Running:  # fmt: skip
        """Start `launch` with these words; program, prefix and how, those of Popen: never forked."""
        number = len(self.started)
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables.update(TMPDIR=str(self.hosts.own_tmpdir), **(env or {}))
        with (self.folder / f"stdout.{number}").open("wb") as out, (self.folder / f"stderr.{number}").open("wb") as err:
            process: subprocess.Popen[bytes] | WarmProcess
            if program == PROGRAM and not (prefix or how or stdout or stderr):
                process = start_launch(*words, cwd=self.folder, env=variables, stdout=out, stderr=err)
            else:
                process = subprocess.Popen(
                    [*prefix, str(program), *words],
                    cwd=self.folder,
                    env=variables,
                    stdin=how.pop("stdin", subprocess.DEVNULL),
                    stdout=out if stdout is None else stdout,
                    stderr=err if stderr is None else stderr,
                    **how,
                )
        self.started.append(Running(process, self.folder, number, self.hosts))
        return self.started[-1]

    def end(self) -> None:
        """Kill launchers that a test has left."""
        for running in self.started:
            if running.process.poll() is None:
                running.signal(signal.SIGCONT)
                running.process.kill()
                running.process.wait()
