"""`launch` in allocations of the tests' Slurm, with short times: typed after salloc, or in a script of sbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from machines.patience import NEVER_S
from machines.processes import Process, wait_until
from machines.runs import WAIT, Done, Running, shell
from machines.slurm import LOGIN, Slurm

# A silence is waited for only where a test says so.
TIMES = ("--silence", f"{NEVER_S:g}", "--stop-timeout", "1")
BOTH = ("--nodes=2",)


def words_of(done: Done) -> list[str]:
    """Return the launcher's own lines but for the first, which says whose hosts these are."""
    first, *words = done.words
    assert re.match(r"launch: hosts of Slurm job \d+: 2 nodes, node\[1-2\]", first), done.words
    return words


@dataclass
class SlurmLaunch:
    """Starts launchers for one test."""

    slurm: Slurm
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *words: str, job: tuple[str, ...] = BOTH) -> Running:
        """Start a run in an allocation of its own; options in `words` come last and win."""
        return self.type("launch", "run", *TIMES, *words, job=job)

    def start_waiting(self, *words: str) -> Running:
        """Start two ranks on each node, and wait until all are ready."""
        running = self.start("--nproc", "2", *words, *shell(WAIT))
        running.wait_for(r"\] ready", 4)
        return running

    def type(self, *argv: str, job: tuple[str, ...] = BOTH) -> Running:
        """Run a program in an allocation; it ends with it."""
        number = len(self.started)
        with (
            (self.folder / f"stdout.{number}").open("wb") as out,
            (self.folder / f"stderr.{number}").open("wb") as err,
        ):
            process = self.slurm.start("salloc", "--quiet", *job, *argv, cwd=self.folder, stdout=out, stderr=err)
        self.started.append(Running(process, self.folder, number, self.slurm.cluster))
        return self.started[-1]

    def submit(self, script: str, *options: str) -> str:
        """Submit a script that runs in our folder and writes to job.log there; return the job's number."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\nexec 2>&1\n{script}\n")
        chdir, log = f"--chdir={self.folder}", f"--output={self.folder / 'job.log'}"
        return self.slurm.submit(*BOTH, chdir, log, *options, str(path))

    def processes(self, host: str, text: str) -> list[Process]:
        """Return what runs on a host and has this in its command line, what was started first in front."""
        return [process for process in self.slurm.cluster[host].processes() if text in process.command]

    def find(self, text: str, host: str = LOGIN) -> Process:
        """Wait for a process that has this in its command line."""
        assert wait_until(lambda: self.processes(host, text)), text
        return self.processes(host, text)[0]

    @property
    def log(self) -> str:
        return (self.folder / "job.log").read_text()
