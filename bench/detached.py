"""Measure a run that one of its hosts controls: its start, its cost when idle, and its output."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.farm import Farm, farm
from bench.process_tree import cpu_seconds
from bench.timing import Row, median
from bench.ways import LAUNCH

FIRST_ALL_REDUCE = Path(__file__).parent / "first_all_reduce.py"
LINES = 2_000_000  # of each of 4 hosts
IDLE_S = 60.0
SETTLE_S = 5.0
_LEAVES_S = 60.0


def detached() -> list[Row]:
    """Measure the start, two and 64 idle hosts, and 8 million lines."""
    return [_start(), *_idle(2, 0.2), *_idle(64, 0.65), *_flood()]


def _start() -> Row:
    with farm(2) as hosts, tempfile.TemporaryDirectory() as folder:
        words = ["--nproc", "2", "--python", sys.executable, "--workdir", "/", str(FIRST_ALL_REDUCE)]

        def measure(*options: str) -> float:
            started = time.monotonic()
            process = subprocess.Popen(
                _command(hosts, folder, *options, *words), env=_environment(folder), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout is not None
            seconds = [time.monotonic() - started for line in process.stdout if "first all-reduce done" in line]
            if process.wait() or not seconds:
                assert process.stderr is not None
                raise RuntimeError(process.stderr.read())
            return seconds[0]

        ours, foreground = median(5, lambda: measure("--detach"), measure)
    detail = f"{ours:.2f} s against {foreground:.2f} s"
    return Row("first all-reduce, detached / foreground", ours / foreground, "ratio", 1.25, detail)


def _idle(count: int, limit: float) -> list[Row]:
    with farm(count) as hosts, tempfile.TemporaryDirectory() as folder, _running(hosts, folder) as controller:
        time.sleep(SETTLE_S)
        agent = _find_agent()
        before, started = [cpu_seconds(pid) for pid in (controller, agent)], time.monotonic()
        time.sleep(IDLE_S)
        passed_s = time.monotonic() - started
        after = [cpu_seconds(pid) for pid in (controller, agent)]
    used = [(late - early) / passed_s * 100 for early, late in zip(before, after, strict=True)]
    names = (f"{count} idle hosts, the controller", f"{count} idle hosts, an agent with a supervisor")
    limits = (limit, 0.2)
    return [
        Row(name, percent, "% of a core", most, f"over {IDLE_S:g} s")
        for name, percent, most in zip(names, used, limits, strict=True)
    ]


@contextlib.contextmanager
def _running(hosts: Farm, folder: str) -> Iterator[int]:
    """Start a run of sleeping ranks, and yield its controller's process id once its terminal is left."""
    words = ["--detach", "--nproc", "1", "--no-python", "sh", "-c", "exec sleep 3600"]
    subprocess.run(
        _command(hosts, folder, *words), env=_environment(folder), check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=_LEAVES_S,
    )  # fmt: skip
    asked = subprocess.run([*LAUNCH, "ps", "--json"], env=_environment(folder), capture_output=True, check=True)
    try:
        yield json.loads(asked.stdout)[0]["pid"]
    finally:
        subprocess.run([*LAUNCH, "stop", "--now"], env=_environment(folder), check=True, capture_output=True)


def _find_agent() -> int:
    """Return the process id of an agent of this machine, where the farm's hosts are."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == "launch-agent":
                return int(path.parent.name)
    raise RuntimeError("no agent runs")


def _flood() -> list[Row]:
    with farm(4) as hosts, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "shown"

        def measure(*options: str) -> float:
            argv = _command(hosts, folder, *options, "--no-python", "--nproc", "1", "seq", "1", str(LINES))
            started = time.monotonic()
            with output.open("wb") as file:
                subprocess.run(argv, env=_environment(folder), stdout=file, stderr=subprocess.PIPE, check=True)
            return time.monotonic() - started

        ours, foreground = median(3, lambda: measure("--detach"), measure)
        logs = sorted(hosts.ssh_config.parent.glob(".local/state/launch/logs/2*/node_*.log"))
        kept = sum(_count_lines(path) for path in logs) / 3
    detail = f"{ours:.2f} s against {foreground:.2f} s"
    return [
        Row("8 million lines, detached / foreground", ours / foreground, "ratio", 2.0, detail),
        Row("8 million lines, kept in the logs", kept, "lines", 4 * LINES, "of 3 runs", at_least=True),
    ]


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(line[-2:-1].isdigit() for line in file)


def _command(hosts: Farm, folder: str, *words: str) -> list[str]:
    start = [*LAUNCH, "--ssh-config", str(hosts.ssh_config), "--hosts", ",".join(hosts.names), "--cpu"]
    return [*start, "--log-dir", f"{folder}/logs", *words]


def _environment(folder: str) -> dict[str, str]:
    """Return an environment whose list of runs is empty at first."""
    return {**os.environ, "XDG_STATE_HOME": f"{folder}/state"}
