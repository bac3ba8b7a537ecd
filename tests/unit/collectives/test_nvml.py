"""A GPU as the driver knows it: how it is found, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import fake_nvml

from launcher.collectives import nvml
from launcher.collectives.nvml import Gpu, find_gpu

pytestmark = pytest.mark.linux
FIRST, SECOND = "00000000:3b:00.0", "00000000:5e:00.0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(library))


def read(gpu: Gpu) -> list[int | None]:
    return [gpu.read_number(), gpu.read_temperature(), gpu.read_clock(), gpu.read_power(), gpu.read_reasons()]


@pytest.mark.usefixtures("driver")
def test_a_healthy_gpu() -> None:
    gpu = find_gpu("GPU-aa", None)
    assert gpu is not None
    assert read(gpu) == [0, 45, 1980, 71000, 0x01]
    assert [gpu.count_errors(corrected=corrected) for corrected in (True, False)] == [None, None], "it has no ECC"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("uuid", "address", "number"),
    [
        pytest.param("GPU-bb", FIRST, 1, id="the UUID comes first"),
        pytest.param("GPU-of-a-MIG-device", SECOND, 1, id="a part of a GPU"),
        pytest.param(None, FIRST, 0, id="a torch without UUIDs"),
    ],
)
def test_how_it_is_found(uuid: str | None, address: str | None, number: int) -> None:
    gpu = find_gpu(uuid, address)
    assert gpu is not None
    assert gpu.read_number() == number


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("uuid", "address"), [("GPU-cc", "00000000:99:00.0"), (None, None)])
def test_a_gpu_that_the_driver_does_not_know(uuid: str | None, address: str | None) -> None:
    assert find_gpu(uuid, address) is None


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    assert find_gpu("GPU-aa", FIRST) is None


def test_an_old_driver_lacks_a_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(fake_nvml.build(tmp_path, "-DOLD")))
    gpu = find_gpu("GPU-aa", None)
    assert gpu is not None
    assert read(gpu) == [0, 45, 1980, None, 0x01]
