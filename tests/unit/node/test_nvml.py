"""GPUs as the driver knows them: how they are found, and what they say (tests/process/test_node_sampler.py: a host)."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.driven_nvml import ADDRESSES, RESERVED_MIB, UNSUPPORTED, DrivenNvml

from launcher.node import nvml
from launcher.node.nvml import find_gpu, list_gpus

pytestmark = pytest.mark.linux
FIRST, SECOND = ADDRESSES
BUSY = (99, 71000, 81559, 650, 700, 61, 1980, 0x4, 3)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrivenNvml:
    driven = DrivenNvml(tmp_path)
    driven.stand_in(monkeypatch)
    driven.drive(BUSY, UNSUPPORTED)
    return driven


def test_what_it_says(driver: DrivenNvml) -> None:
    names = ("index", "temperature_c", "clock_mhz", "power_mw", "reasons", "corrected_errors", "uncorrected_errors")
    for uuid, values in (("GPU-aa", [0, 61, 1980, 650_000, 4, 0, 3]), ("GPU-bb", [None] * 7)):
        gpu = find_gpu(uuid, None)
        assert gpu is not None
        assert [gpu.read(name) for name in names] == values


@pytest.mark.parametrize(
    ("uuid", "address", "number"),
    [
        pytest.param("GPU-bb", FIRST, 1, id="the UUID comes first"),
        pytest.param("GPU-of-a-MIG-device", SECOND, 1, id="a part of a GPU"),
        pytest.param(None, FIRST, 0, id="a torch without UUIDs"),
        pytest.param("GPU-cc", "00000000:99:00.0", None, id="neither is known"),
        pytest.param(None, None, None, id="neither is told"),
    ],
)
def test_how_it_is_found(driver: DrivenNvml, uuid: str | None, address: str | None, number: int | None) -> None:
    driver.drive(BUSY, BUSY)
    gpu = find_gpu(uuid, address)
    assert (gpu.read("index") if gpu is not None else None) == number


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    assert find_gpu("GPU-aa", FIRST) is None
    with pytest.raises(nvml.NvmlError):
        list_gpus()


def test_what_the_driver_reserves_is_not_used_where_it_tells_both(
    driver: DrivenNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [gpu.read_memory() for gpu in list_gpus()] == [(71000, 81559), (None, None)]
    (tmp_path / "old").mkdir()
    older = DrivenNvml(tmp_path / "old", "-DOLD")
    older.stand_in(monkeypatch)
    older.drive(BUSY)
    assert [gpu.read_memory() for gpu in list_gpus()] == [(71000 + RESERVED_MIB, 81559)]
