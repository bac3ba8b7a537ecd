"""Time commands: wall-clock seconds, medians of interleaved repetitions, a row for each result."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str
    limit: float
    detail: str
    at_least: bool = False  # the limit is a minimum; otherwise it is a maximum
    spread: float = 0.0  # of single turns around the value; 0: not measured

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a command."""

    seconds: float
    cpu_seconds: float
    memory_mib: float
    output: str = ""


def run(argv: Sequence[str | Path], *, env: dict[str, str] | None = None, output: Path | None = None) -> Spent:
    """Run a command to its end and return its cost, including its children's CPU."""
    started = time.monotonic()
    target = output.open("wb") if output else subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=target, stderr=errors, env=env)
        stdout = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)  # of this process and its children only
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if process.returncode:
            words = shlex.join(map(str, argv))
            raise RuntimeError(f"{words}: exit code {process.returncode}\n{errors.read().decode()}")
    return Spent(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, stdout.decode())


def median(repeats: int, *measures: Callable[[], float]) -> list[float]:
    """Return the median of each measure; they run in turns, so that noise affects all equally."""
    return [statistics.median(found) for found in take_turns(repeats, *measures)]


def take_turns(repeats: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Return all values of each measure; they run in turns, so that noise affects all equally."""
    values: list[list[float]] = [[] for _ in measures]
    for _ in range(repeats):
        for found, measure in zip(values, measures, strict=True):
            found.append(measure())
    return values


def compare_turns(name: str, ours: Sequence[float], theirs: Sequence[float], limit: float, unit: str = "s") -> Row:
    """Return the row of a ratio: of two medians, with the spread of the ratios of single turns."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    spread = spread_of([own / their for own, their in zip(ours, theirs, strict=True)])
    return Row(name, mine / other, "ratio", limit, f"{mine:.2f} {unit} against {other:.2f} {unit}", spread=spread)


def spread_of(values: Sequence[float]) -> float:
    """Return how far apart the middle half of the values is, so that one turn that was disturbed has no effect."""
    first, _, third = statistics.quantiles(values, method="inclusive")
    return third - first
