"""`launch top`, of a run and of hosts, on a machine with GPUs that do what the test says."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from machines.driven_nvml import DrivenNvml
from machines.launches import hurried, run_launch, start_launch
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from machines.warm import WarmProcess

BUSY = (99, 71000, 81559, 650, 700, 61, 1980, 0x4, 0)
HOT = (99, 71000, 81559, 420, 700, 87, 800, 0x40, 0)
SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) for index in 0 1 2 3; do
    echo "$index, H100, 81559, 570.1, GPU-{folder}-$index, 81000, Default, 0, 00000000:3$index:00.0, \\
Disabled, 30, Disabled"
done;;
esac
"""


# Intervals of a second instead of 15.
QUICK = {"launcher.runs.attempt.PERIOD_S": 0.2, "launcher.runs.samples.INTERVAL_S": 1.0}


class Machine:
    """This machine, with four GPUs."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.folder = folder
        self.nvml = DrivenNvml(folder)
        self.nvml.drive(*[BUSY] * 4)
        tool = folder / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(SMI.format(folder=folder.name))
        tool.chmod(0o755)
        self._env = {**os.environ, **self.nvml.env, "PATH": f"{tool.parent}:{os.environ['PATH']}", "TERM": "xterm"}
        self._ends = ends

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `launch`, to its end."""
        return run_launch(*words, cwd=self.folder, env=self._env)

    def start(self, *words: str, stdout: IO[bytes] | None = None) -> WarmProcess:
        """Start `launch`, which writes to the file `said`, or to `stdout` and there."""
        with (self.folder / "said").open("wb") as said:
            process = start_launch(*words, cwd=self.folder, env=self._env, stdout=stdout or said, stderr=said)
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        return process

    def start_quickly(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a run whose samples come often; it writes to the file `said`."""
        with (self.folder / "said").open("wb") as said:
            argv = [*hurried(QUICK), *words]
            process = subprocess.Popen(argv, cwd=self.folder, env=self._env, stdout=said, stderr=said)
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        return process

    @property
    def said(self) -> str:
        """What it has written."""
        return (self.folder / "said").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as ends:
        yield Machine(tmp_path, ends)


def test_the_odd_gpu_of_a_run(machine: Machine) -> None:
    words = ("--gpus", "4", "--name", "nightly", "--no-python", "sh", "-c", "until [ -e go ]; do sleep 0.1; done")
    run = machine.start_quickly("singlenode", *words)
    assert wait_until(lambda: "logs in" in machine.said), machine.said
    folder = machine.folder / "logs" / "latest"
    top = machine.launch("top", "--once")
    assert top.returncode == 0, top.stderr
    host = os.uname().nodename.split(".")[0]
    head, columns, of_host, first, *_ = top.stdout.splitlines()
    assert head.startswith("run 20") and head.endswith(" (nightly), 1 host, 4 GPUs")
    assert columns.split()[:4] == ["HOST", "GPU", "UTIL", "%"] and of_host.startswith(f"{host} ")
    assert first.split() == ["0", "99", "69/80", "650/700", "61", "1980/1980", "power", "cap", "0"]
    machine.nvml.drive(BUSY, BUSY, HOT, BUSY)
    clock = "SM clock 800 MHz"
    line = f"launch: {host} GPU 2 (rank 2): thermal slowdown for 30 s, {clock}\n"
    assert wait_until(lambda: line in machine.said), machine.said
    row = json.loads(machine.launch("ps", "--json").stdout)[0]
    assert row["doing"]["odd"] == [f"{host} GPU 2 (rank 2)"]
    assert f" running, odd: {host} GPU 2 (rank 2) " in machine.launch("ps").stdout
    (sample,) = map(json.loads, machine.launch("top", "nightly", "--once", "--json").stdout.splitlines())
    assert (sample["event"], sample["host"], sample["gpus"][2]["temperature_c"]) == ("sample", host, 87)
    assert sample["odd"] == [line.removeprefix("launch: ").rstrip()]
    (machine.folder / "go").touch()
    assert run.wait() == 0
    assert machine.said.count("thermal slowdown") == 1
    kept = [json.loads(text) for text in (folder / "samples.jsonl").read_text().splitlines()]
    assert [each["finding"] for each in kept if "finding" in each] == [f"thermal slowdown for 30 s, {clock}"]
    assert [99, 71000, 420, 87, 800, 0x40] in [each["gpus"]["2"][:6] for each in kept if "gpus" in each]
    ended = machine.launch("top", "nightly")
    assert (ended.returncode, "has ended\n" in ended.stderr) == (2, True), ended.stderr


def test_hosts(machine: Machine) -> None:
    machine.nvml.drive(BUSY, BUSY, HOT, BUSY)
    top = machine.launch("top", "--hosts", "localhost", "--once")
    assert top.returncode == 0, top.stderr
    assert [line.split()[:2] for line in top.stdout.splitlines()[3:]] == [[str(index), "99"] for index in range(4)]
    assert " thermal" in top.stdout.splitlines()[5]


def test_hosts_that_can_not_be_reached(machine: Machine) -> None:
    """On a terminal, the screen that names them is gone at the end."""
    top = machine.launch("top", "--hosts", "no.such.host.invalid", "--json")
    (sample,) = map(json.loads, top.stdout.splitlines())
    assert (top.returncode, sample["host"], sample["time"]) == (69, "no.such.host.invalid", None)
    assert top.stderr.startswith("launch: 1 host can't be used:\n  no.such.host.invalid: "), top.stderr


def test_the_screen(machine: Machine) -> None:
    ours, terminal = pty.openpty()
    with os.fdopen(terminal, "wb") as stdout:
        process = machine.start("top", "--hosts", "localhost", stdout=stdout)
    shown = b""
    while b"Ctrl-C quits" not in shown:
        assert select.select([ours], [], [], DEADLINE_S)[0], shown
        shown += os.read(ours, 1 << 16)
    process.kill()
    os.close(ours)
