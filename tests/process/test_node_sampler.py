"""What a node tells of its GPUs and of itself, again and again, with a library in NVML's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines.driven_nvml import LOST, DrivenNvml
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import is_alive
from node_process import wait_until

from launcher.job.facts import GpuSample
from launcher.node.sampler import HostReader
from launcher.session.allowed_messages import read_message

PERIOD_S = 0.1
BUSY = (99, 71000, 81559, 650, 700, 61, 1980, 0x4, 0)
HOT = (97, 71000, 81559, 420, 700, 87, 800, 0x40, 3)
# Asks a Sampler as a supervisor does, and prints what it sends.
PROGRAM = """
import json, sys
from launcher.node.loop import Loop
from launcher.node import sampler as module
from launcher.node.sampler import Sampler
module._HANGS_S = float(sys.argv[2])
def send(kind, **fields):
    print(json.dumps(dict(fields, type=kind)), flush=True)
loop = Loop()
sampler = Sampler(loop, send, float(sys.argv[1]), ".", with_processes=False)
print(sampler.process.pid, flush=True)
loop.watch(0, sampler.end)
while loop.is_watching(sampler._fd):
    loop.run_once()
sys.stdin.read()
"""


@pytest.fixture
def nvml(tmp_path: Path) -> DrivenNvml:
    return DrivenNvml(tmp_path)


def start(env: dict[str, str], hangs_s: float = NEVER_S) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, str(PERIOD_S), str(hangs_s)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env={**os.environ, **env}, stdin=pipe, stdout=pipe, text=True)


def test_what_nvml_tells(nvml: DrivenNvml) -> None:
    nvml.drive(BUSY, HOT)
    with start(nvml.env) as process:
        assert process.stdin is not None and process.stdout is not None
        child = int(process.stdout.readline())
        first, *others = (read_message(json.loads(process.stdout.readline())) for _ in range(10))
        # None, too, if a look that was late is followed by the next one at once: no tick of a CPU has passed.
        second = next(told for told in others if told["host"].cpu_percent is not None)
        assert first["host"].cpu_percent is None and 0 <= second["host"].cpu_percent <= 100
        busy, hot = second["gpus"]
        assert busy == GpuSample(0, "H1", 99, 71000, 81559, 650, 700, 61, 1980, 1980, 4, 0)
        assert hot == GpuSample(1, "H1", 97, 71000, 81559, 420, 700, 87, 800, 1980, 64, 3)
        assert second["error"] is None
        nvml.drive(HOT, HOT)
        looks = int(DEADLINE_S / PERIOD_S)  # those that were taken before may have to be read first
        assert any(json.loads(process.stdout.readline())["gpus"][0][7] == 87 for _ in range(looks))
        process.stdin.close()
        wait_until(lambda: not is_alive(child))  # it ends once nobody reads
        process.kill()


def test_a_gpu_whose_calls_fail_has_no_values_and_a_sensor_that_errs_ends_no_connection(nvml: DrivenNvml) -> None:
    nvml.drive((101, 71000, 81559, 650, 700, 61, 0xFFFFFFFF, 0x4, 0), LOST)
    with start(nvml.env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        told = read_message(json.loads(process.stdout.readline()))
        erring = told["gpus"][0]
        assert (erring.utilization, erring.clock_mhz, erring.temperature_c, told["error"]) == (101, None, 61, None)
        assert told["gpus"][1] == GpuSample(1, "H1", max_clock_mhz=1980)
        process.stdin.close()
        process.kill()
    odd = {"type": "sampled", "host": {}, "gpus": [[0, "H1", -7.0, *[None] * 9]], "error": None}
    told = read_message(odd)
    assert (told["gpus"], told["error"]) == ([], "its samples can't be read: gpus: -7.0")


def test_a_reader_that_hangs_is_left_alone(nvml: DrivenNvml) -> None:
    nvml.hang()
    with start(nvml.env, 0.5) as process:
        assert process.stdin is not None and process.stdout is not None
        child = int(process.stdout.readline())
        told = json.loads(process.stdout.readline())
        assert told["error"] == f"what reads its GPUs hangs (process {child}, state S)"
        assert (told["host"], told["gpus"]) == (None, [])
        process.stdin.close()
        process.kill()
        os.kill(child, 9)  # this one only pretends


def test_the_host_itself(tmp_path: Path) -> None:
    reader = HostReader(str(tmp_path))
    first = reader.read()
    assert first["swap_mib_s"] is None and first["memory_mib"] > first["memory_used_mib"] > 0
    assert 0 < first["disk_free_percent"] <= 100
    (tmp_path / "x").write_bytes(b"x" * (1 << 20))
    second = reader.read()
    rates = ("swap_mib_s", "network_mib_s", "cpu_percent")
    assert all(second[name] is None or second[name] >= 0 for name in rates), second
