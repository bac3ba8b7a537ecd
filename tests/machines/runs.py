"""A launcher that runs on test hosts: wait for its output, and read what it leaves when it has exited."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from machines.logs import without_stamps
from machines.processes import is_alive, read_proc, wait_until
from machines.warm import WarmProcess

# A rank that exits at SIGTERM, or when the test creates the file `go`.
WAIT = 'echo "ready $RANK"; until [ -e go ]; do sleep 0.2; done; echo end'


def shell(script: str) -> list[str]:
    """Return the words that make each rank a shell script."""
    return ["--no-python", "sh", "-c", script]


def _even(text: str) -> str:
    text = re.sub(r"\d{8}-\d{6}(-[0-9a-f]+)*\b", "RUN", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", text)
    return re.sub(r"\b(\d+ min )?\d+(\.\d)? s\b", "N s", text)


class Hosts(Protocol):
    """Where a launcher runs something."""

    def ranks(self) -> Sequence[object]:
        """Return the processes of runs on the hosts that can be reached."""

    def processes(self) -> Sequence[object]:
        """Return what runs on all hosts, guardians and supervisors included."""


@dataclass(frozen=True)
class Done:
    """What a launcher leaves when it has exited: exit code, output, logs."""

    exit_code: int
    stdout: str
    stderr: str
    logs: Path
    peak_kib: int  # the most memory that it was seen with

    @property
    def lines(self) -> list[str]:
        return self.stdout.split("\n")[:-1]

    @property
    def words(self) -> list[str]:
        """Return the launcher's own messages, with RUN, N and HH:MM:SS for what differs between runs."""
        lines = _even(self.stderr).splitlines()
        return [line for line in lines if not line.startswith(("[node", "launch: waiting for "))]

    @property
    def table(self) -> list[str]:
        """Return what `launch check` printed, with N for each time."""
        return _even(self.stdout).splitlines()

    @property
    def run_id(self) -> str:
        return self.logs.resolve().name

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.logs / "run.json").read_text())  # type: ignore[no-any-return]

    def log(self, node_rank: int) -> list[str]:
        """Return the lines of a node's log without their timestamps."""
        log = (self.logs / f"node_{node_rank}.log").read_bytes()
        return without_stamps(log).decode("utf-8", "replace").splitlines()

    def __str__(self) -> str:
        return f"exit code {self.exit_code}\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"


@dataclass(frozen=True)
class Running:
    """A launcher that has been started."""

    process: subprocess.Popen[bytes] | WarmProcess
    folder: Path
    number: int
    hosts: Hosts
    logs: Path | None = None  # of all runs; None: logs in the directory where it was started

    @property
    def stdout(self) -> str:
        """Return what it has printed so far, with its carriage returns."""
        return (self.folder / f"stdout.{self.number}").read_bytes().decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return (self.folder / f"stderr.{self.number}").read_bytes().decode("utf-8", "replace")

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Wait until stdout and stderr together have `count` matches of `pattern`."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None  # before the look: the last lines may come just before the end
            found = len(re.findall(pattern, self.stdout + self.stderr, re.MULTILINE))
            assert found >= count or not has_ended, f"ended before {count} x {pattern!r}: {self}"
            return found >= count

        assert wait_until(is_there), f"no {count} x {pattern!r} in time: {self}"

    def wait_for_ranks(self, count: int = 4) -> None:
        """Wait until that many ranks of tests/ssh/rank.py are ready."""
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
        """Let ranks that wait for the file `go` continue."""
        (self.folder / "go").touch()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self) -> Done:
        """Wait until the launcher exits; fail if a process of the run is left then on a reachable host."""
        done = self.wait()
        left = self.hosts.ranks()
        assert not left, f"left at the launcher's end: {left}{self}"
        assert not any(map(is_alive, self.pids())), f"hidden processes left\n{self}"
        return done

    def wait(self) -> Done:
        """Wait until the launcher exits, whatever still runs then."""
        peaks = [0]

        def has_ended() -> bool:
            found = re.search(r"VmHWM:\s*(\d+)", read_proc(self.process.pid, "status"))
            peaks.append(int(found[1]) if found else 0)
            return self.process.poll() is not None

        assert wait_until(has_ended), f"not ended in time: {self}"
        logs = self.logs or self.folder / "logs"
        return Done(self.process.returncode, self.stdout, self.stderr, logs / "latest", max(peaks))

    def wait_until_clean(self) -> None:
        """Wait until nothing runs on any host, guardians and supervisors included."""
        assert wait_until(lambda: not self.hosts.processes()), f"left: {self.hosts.processes()}"
        assert not any(map(is_alive, self.pids()))

    def __str__(self) -> str:
        return f"\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"
