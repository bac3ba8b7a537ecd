"""What devices did under load: who is called slow or sick, each finding as a whole text."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from machines.example_facts import told

from launcher.forms import FormError, reader_of
from launcher.preflight.load import MeasuredLoad, Sensors, as_records, check

HOSTS = ["gpu1", "gpu2"]
WELL = MeasuredLoad(0, 0, "H100", "bf16", 453e12, 2.71e12, 55.1e9, 54e9, Sensors(0, 60, 62, 1980, 690))
ON_CPU = MeasuredLoad(0, 0, "CPU rank (x86_64, threads: 1)", "fp32", 60e9, 12e9)
FIGURES = "453 TFLOP/s in bf16 (453 to 453), 2710 GB/s in memory (2710 to 2710), 55.1 GB/s to the GPU (55.1 to 55.1), "
LEAVE_OUT = "leave it out with --exclude gpu2:3: all other ranks wait for it"
SEE = "fix: see nvidia-smi -q there, its cooling and power supply, or"
COOL = f"{SEE} {LEAVE_OUT}"


def sixteen(**odd: object) -> list[MeasuredLoad]:
    """Return the loads of two hosts with eight H100 each, of which GPU 3 of gpu2 is odd."""
    loads = [
        replace(WELL, rank=rank, node=rank // 8, sensors=replace(WELL.sensors, number=rank % 8)) for rank in range(16)
    ]
    sensors = {name: value for name, value in odd.items() if hasattr(WELL.sensors, name)}
    speeds = {name: value for name, value in odd.items() if name not in sensors}
    loads[11] = replace(loads[11], sensors=replace(loads[11].sensors, **sensors), **speeds)
    return loads


def findings(loads: list[MeasuredLoad]) -> list[str]:
    return [line for line in told(check(loads, HOSTS)) if not line.startswith("note")]


@pytest.mark.parametrize(
    ("odd", "finding"),
    [
        ({}, None),
        ({"flops": 412e12}, None),  # 9 % less
        ({"reasons": 0x04}, None),  # a full load is as much as it may have
        (
            {"flops": 398e12, "hottest_c": 87, "reasons": 0x24},
            "warning: gpu2: GPU 3: 398 TFLOP/s in bf16, 12 % below the median 453 of 16 x H100; 87 degrees C, "
            f"thermal slowdown; {COOL}",
        ),
        (
            {"flops": 300e12, "copy": 2.4e12},
            "problem: gpu2: GPU 3: 300 TFLOP/s in bf16, 34 % below the median 453 of 16 x H100; "
            "2400 GB/s in memory, 11 % below the median 2710; 62 degrees C; "
            f"{SEE} {LEAVE_OUT}",
        ),
        (
            {"to_gpu": 26e9, "from_gpu": 0.0},
            "problem: gpu2: GPU 3: 26 GB/s to the GPU, 53 % below the median 55.1 of 16 x H100; "
            "0 GB/s from the GPU, 100 % below the median 54; 62 degrees C; "
            "fix: look at the width of its PCIe link with nvidia-smi -q, and at what else uses the link",
        ),
        (
            {"reasons": 0x08, "hottest_c": None},
            f"warning: gpu2: GPU 3: hardware slowdown; {COOL}",
        ),
        (
            {"uncorrected_errors": 1, "corrected_errors": 4},
            "problem: gpu2: GPU 3: 62 degrees C; 1 uncorrectable memory error; 4 corrected memory errors; "
            f"{SEE} {LEAVE_OUT}",
        ),
        (
            {"flops": 398e12, "number": None, "hottest_c": None},  # no NVML there
            "warning: gpu2: rank 11: 398 TFLOP/s in bf16, 12 % below the median 453 of 16 x H100; "
            f"{SEE} leave it out with --exclude: all other ranks wait for it",
        ),
    ],
)
def test_one_of_sixteen_gpus(odd: dict[str, object], finding: str | None) -> None:
    assert findings(sixteen(**odd)) == ([finding] if finding else [])


def test_transfers_are_compared_within_a_numa_node() -> None:
    """A container may allow the CPUs of one node only, and then all GPUs of the other one are slower to reach."""
    far = {"to_gpu": 40e9, "numa_node": 1}
    loads = [replace(each, **(far if each.rank % 8 > 3 else {"numa_node": 0})) for each in sixteen()]
    assert findings(loads) == []
    loads[12] = replace(loads[12], to_gpu=20e9)
    assert findings(loads) == [
        "problem: gpu2: GPU 4: 20 GB/s to the GPU, 50 % below the median 40 of 8 x H100 at NUMA node 1; "
        "62 degrees C; fix: look at the width of its PCIe link with nvidia-smi -q, and at what else uses the link"
    ]


def test_the_figures_of_each_model() -> None:
    """They are compared with their own model; a lone one with nothing."""
    lone = replace(WELL, rank=16, node=1, model="A100", flops=250e12)
    noted = told(check([*sixteen(), lone], HOSTS))
    assert noted == [
        f"note: gpu[1-2]: 16 x H100 under load: {FIGURES}54 GB/s from the GPU (54 to 54), up to 62 degrees C",
        "note: gpu2: 1 x A100 under load: 250 TFLOP/s in bf16, 2710 GB/s in memory, 55.1 GB/s to the GPU, "
        "54 GB/s from the GPU, up to 62 degrees C",
    ]


def test_the_slower_one_of_two() -> None:
    slow = replace(WELL, rank=1, node=1, flops=398e12)
    (finding,) = findings([WELL, slow])
    assert finding.startswith("warning: gpu2: GPU 0: 398 TFLOP/s in bf16, 12 % below the median 453 of 2 x H100; ")


@pytest.mark.parametrize(
    ("flops", "finding"),
    [
        (31e9, None),
        (
            3e9,
            "warning: gpu2: rank 2: 3 GFLOP/s in fp32, 95 % below the median 60 of 3 x CPU rank (x86_64, threads: 1); "
            "fix: look what else runs on its cores",
        ),
    ],
)
def test_cpus_share_cores_so_they_are_only_warned_of(flops: float, finding: str | None) -> None:
    loads = [replace(ON_CPU, rank=rank) for rank in range(2)] + [replace(ON_CPU, rank=2, node=1, flops=flops)]
    assert findings(loads) == ([finding] if finding else [])


def test_what_rank_0_sends_is_read() -> None:
    loads = sixteen(reasons=0x08)
    sent = json.loads(json.dumps([asdict(load) for load in loads]))
    assert reader_of(tuple[MeasuredLoad, ...])(sent) == tuple(loads)
    assert reader_of(MeasuredLoad)(json.loads(json.dumps(asdict(ON_CPU) | {"sensors": None}))) == ON_CPU
    assert as_records(loads, HOSTS)[11]["host"] == "gpu2"
    with pytest.raises(FormError, match="flops"):
        reader_of(MeasuredLoad)(asdict(ON_CPU) | {"flops": -1.0})
