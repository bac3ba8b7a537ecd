"""`launch` as a subprocess in a folder of its own: started, waited for by its words, signalled, and read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from machines.launches import PROGRAM, start_launch
from machines.logs import without_stamps
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import is_alive, wait_until
from machines.warm import WarmProcess
from ssh_hosts import POLL_S, SshHosts, read_peak_kib

RANK_FILE = Path(__file__).with_name("rank.py")
# Nobody waits for a silence here, and who ignores SIGTERM is soon killed.
TIMES = ("--silence", f"{NEVER_S:g}", "--stop-timeout", "1")

# A test that touches the transport runs over each; the others run over the first alone.
TRANSPORTS = ("fabric", "ssh")
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


def shell(script: str) -> list[str]:
    """Return the words that make each rank a shell script."""
    return ["--no-python", "sh", "-c", script]


def rank(*behaviours: str) -> list[str]:
    """Return the words that make each rank behave as rank.py says: `rank("wait", "2=fail")`."""
    return ["--no-python", sys.executable, "-IS", str(RANK_FILE), *behaviours]


def read_exact(path: Path) -> str:
    """Return a file's text with its carriage returns."""
    return path.read_bytes().decode("utf-8", "replace")


@dataclass(frozen=True)
class Done:
    """What a launcher that has ended leaves: exit code, output, logs."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path
    peak_kib: int

    @property
    def lines(self) -> list[str]:
        return self.stdout.split("\n")[:-1]

    @property
    def words(self) -> list[str]:
        """Return the launcher's own lines; what differs from run to run is RUN, N and HH:MM:SS, or left away."""
        text = re.sub(r"\d{8}-\d{6}(-\d+)?", "RUN", self.stderr)
        text = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", text)
        text = re.sub(r"\b(\d+ min )?\d+(\.\d)? s\b", "N s", text)
        return [line for line in text.splitlines() if not line.startswith(("[node", "launch: waiting for "))]

    @property
    def run_id(self) -> str:
        return self.logs.resolve().name

    @property
    def logs(self) -> Path:
        return self.folder / "logs" / "latest"

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.logs / "run.json").read_text())  # type: ignore[no-any-return]

    def log(self, node_rank: int) -> str:
        """Return a node's log, without the stamps of its lines."""
        return without_stamps((self.logs / f"node_{node_rank}.log").read_bytes()).decode("utf-8", "replace")

    def __str__(self) -> str:
        return f"exit code {self.exit_code}\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"


@dataclass
class Running:
    """A launcher that was started."""

    process: subprocess.Popen[bytes] | WarmProcess
    folder: Path
    hosts: SshHosts
    number: int
    peak_kib: int = 0

    @property
    def stdout(self) -> str:
        return read_exact(self.folder / f"stdout.{self.number}")

    @property
    def stderr(self) -> str:
        return read_exact(self.folder / f"stderr.{self.number}")

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Wait until `count` lines of stdout and stderr together match."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None  # before the look: the last lines may come just before the end
            found = len(re.findall(pattern, self.stdout + self.stderr, re.MULTILINE))
            assert found >= count or not has_ended, f"ended before {count} x {pattern!r}: {self._so_far()}"
            return found >= count

        assert wait_until(is_there, poll_s=POLL_S), f"no {count} x {pattern!r} in time: {self._so_far()}"

    def wait_for_ranks(self, count: int = 4) -> None:
        """Wait until that many ranks of rank.py are ready."""
        self.wait_for(r"ready \d+ pids", count)

    def pids(self) -> list[int]:
        """Return the ids that the ranks of rank.py told, those of hidden children too."""
        return [int(pid) for line in re.findall(r"ready \d+ pids ([\d ]+)", self.stdout) for pid in line.split()]

    def pid_of(self, number: int) -> int:
        """Return the process id of one rank of rank.py."""
        found = re.search(rf"ready {number} pids (\d+)", self.stdout)
        assert found is not None
        return int(found[1])

    def go(self) -> None:
        """Let the ranks that wait for this begin to fail."""
        (self.folder / "go").touch()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self) -> Done:
        """Wait until the launcher ends; by then no process of the run may be left where it could look."""
        done = self.wait()
        if "unreachable" not in done.stderr:
            left = self.hosts.ranks()
            assert not left, f"left at the launcher's end: {left}\n{done}"
            assert not any(map(is_alive, self.pids())), f"hidden processes left\n{done}"
        return done

    def wait(self) -> Done:
        """Wait until the launcher ends, whatever still runs then."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"not ended in time: {self._so_far()}"
            self.peak_kib = max(self.peak_kib, read_peak_kib(self.process.pid))
            time.sleep(POLL_S)
        return Done(self.process.returncode, self.stdout, self.stderr, self.folder, self.peak_kib)

    def wait_until_clean(self) -> None:
        """Wait until nothing runs on any host, guardians and supervisors included."""
        assert wait_until(lambda: not self.hosts.processes()), f"left: {self.hosts.processes()}"
        assert not any(map(is_alive, self.pids()))

    def _so_far(self) -> str:
        return f"\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"


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
        self.started.append(Running(process, self.folder, self.hosts, number))
        return self.started[-1]

    def end(self) -> None:
        """Kill launchers that a test has left."""
        for running in self.started:
            if running.process.poll() is None:
                running.signal(signal.SIGCONT)
                running.process.kill()
                running.process.wait()
