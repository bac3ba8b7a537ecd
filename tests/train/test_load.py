"""Devices under load: what each rank measures, and what its GPU's driver says meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from machines.driven_nvml import DrivenNvml
from machines.processes import wait_until

from launcher.collectives import load
from launcher.forms import reader_of
from launcher.node.processes import numa
from launcher.preflight.load import Sensors, check, read_loads

TURN_S = 0.2  # long enough for a busy machine to keep the share


@contextlib.contextmanager
def slowed_process(pid: int, share: float) -> Iterator[None]:
    """Let a process run for this share of the time until the block ends, or until it has ended."""
    is_over = threading.Event()

    def take_turns() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not is_over.wait(TURN_S * share):
                os.kill(pid, signal.SIGSTOP)
                is_over.wait(TURN_S * (1 - share))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_slowed_rank_is_named(starter: Any) -> None:
    """It gets a twentieth of its time, and so does less than the others in the same time."""
    results = starter.folder / "results.json"
    words = ["-m", "launcher.collectives", "--max-size", "1", "--load", "1"]
    ranks = starter.start_ranks(3, lambda _: words, {"LAUNCH_FILES": str(results.parent)})
    ranks[0].wait_for("loading all CPUs for 1 s")
    with slowed_process(ranks[1].process.pid, 0.05):
        assert [rank.wait() for rank in ranks] == [0, 0, 0], ranks[1].stderr
    loads = read_loads(results.read_bytes(), 1)
    assert [(measured.rank, measured.node, measured.dtype) for measured in loads] == [(n, 0, "fp32") for n in range(3)]
    slow, *_ = check(loads, ["n1"])
    assert slow.text.startswith("rank 1: "), loads
    assert " % below the median " in slow.text and f"3 x {load.name_device(torch.device('cpu'))}" in slow.text


@pytest.mark.linux
@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"uuid": "bb"}, id="torch 2.4"),
        pytest.param({"uuid": "of-a-MIG-device", "pci_domain_id": 0, "pci_bus_id": 0x5E, "pci_device_id": 0}, id="MIG"),
    ],
)
def test_a_gpu_that_gets_hot(known: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake driver, and what a torch for CUDA says of the GPU."""
    warm, hot = (
        (99, 71000, 81559, 700, 700, heat, clock, reasons, errors)
        for heat, clock, reasons, errors in ((80, 1980, 0x04, 3), (84, 800, 0x48, 5))
    )
    monkeypatch.setattr(load, "SAMPLE_S", 0.001)
    driver = DrivenNvml(tmp_path)
    driver.stand_in(monkeypatch)
    driver.drive(warm, warm)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**known))
    gpu = load.find_gpu(torch.device("cuda", 0))
    assert gpu is not None
    with load.sample(gpu) as samples:
        for state, heat_c in ((warm, 80), (hot, 84), (warm, 80)):
            driver.drive(warm, state)
            assert wait_until(lambda wanted_c=heat_c: samples and samples[-1]["temperature_c"] == wanted_c)
        driver.drive(warm, hot)
    sensors = load.summarize(samples)
    assert sensors is not None
    read = {"number": 1, "power_w": 700, "corrected_errors": 0, "uncorrected_errors": 2, "reasons": 0x48 | 0x04}
    assert sensors == {**sensors, **read, "hottest_c": 84}
    reader_of(Sensors)(sensors)


@pytest.mark.linux
def test_memory_is_pinned_at_the_gpus_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a torch for CUDA and the kernel say of the GPU."""
    allowed, folder = os.sched_getaffinity(0), tmp_path / "0000:5e:00.0"
    last, known = max(allowed), SimpleNamespace(pci_domain_id=0, pci_bus_id=0x5E, pci_device_id=0)
    monkeypatch.setattr(numa, "PCI_DEVICES", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    gpu = torch.device("cuda", 0)
    assert (numa.move_near(load.find_address(gpu)), os.sched_getaffinity(0)) == (None, allowed)
    folder.mkdir()
    for number, cpus, used in (
        (1, f"{last}-{last + 7},{last + 100}\n", {last}),
        (1, f"{last + 1}-{last + 7}\n", allowed),  # of which a container allows none
        (-1, f"0-{last}\n", allowed),  # the machine has one node
    ):
        (folder / "numa_node").write_text(f"{number}\n")
        (folder / "local_cpulist").write_text(cpus)
        try:
            assert (numa.move_near(load.find_address(gpu)), os.sched_getaffinity(0)) == (
                None if number < 0 else number,
                used,
            )
        finally:
            os.sched_setaffinity(0, allowed)
    assert load.find_address(torch.device("cpu")) is numa.move_near(None) is None
