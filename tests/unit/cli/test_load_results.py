"""What `test-distributed` prints of the devices under load, and its exit code."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.cli.test_distributed import RESULTS, print_loads
from launcher.errors import EXIT_PREFLIGHT, LauncherError
from launcher.hosts.host import Host
from launcher.preflight.load import MeasuredLoad, Sensors

HOSTS = [Host("gpu1"), Host("gpu2")]
WELL = MeasuredLoad(0, 0, "H100", "bf16", 453e12, 2.7e12, 55e9, 54e9, Sensors(0))
OTHERS = "2700 GB/s in memory (2700 to 2700), 55 GB/s to the GPU (55 to 55), 54 GB/s from the GPU (54 to 54)"


def write(folder: Path, *flops: float) -> Path:
    """Write the loads of a GPU on each host, as rank 0 of a run does."""
    loads = [asdict(replace(WELL, rank=node, node=node, flops=each)) for node, each in enumerate(flops)]
    (folder / RESULTS).parent.mkdir(parents=True)
    (folder / RESULTS).write_text(json.dumps({"ranks": 2, "loads": loads}))
    return folder


@pytest.mark.parametrize(
    ("slow", "severity", "lag", "exit_code"), [(398, "warning", 12, 0), (317, "problem", 30, EXIT_PREFLIGHT)]
)
def test_a_slow_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slow: int, severity: str, lag: int, exit_code: int
) -> None:
    folder = write(tmp_path, 453e12, slow * 1e12)
    assert print_loads(folder, HOSTS, as_json=False) == exit_code
    assert capsys.readouterr().out.splitlines() == [
        f"{severity}: gpu2: GPU 0: {slow} TFLOP/s in bf16, {lag} % below the median 453 of 2 x H100; fix: see "
        "nvidia-smi -q there, its cooling and power supply, or leave it out with --exclude gpu2:0: "
        "all other ranks wait for it",
        f"gpu[1-2]: 2 x H100 under load: 453 TFLOP/s in bf16 ({slow} to 453), {OTHERS}",
    ]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_loads(write(tmp_path, 453e12, 453e12), HOSTS, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["event"], [load["host"] for load in found["loads"]]) == ("load", ["gpu1", "gpu2"])
    assert [finding["severity"] for finding in found["findings"]] == ["note"]


@pytest.mark.parametrize("flops", [(453e12,) * 3, (float("nan"),), ()])
def test_what_a_host_can_not_have_measured(tmp_path: Path, flops: tuple[float, ...]) -> None:
    folder = write(tmp_path, *flops) if flops else tmp_path
    with pytest.raises(LauncherError, match=r"results\.json: can't be read: "):
        print_loads(folder, HOSTS, as_json=False)
