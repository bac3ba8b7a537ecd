"""Peaks by the name of a device, and the share of them that is used."""

from __future__ import annotations

import pytest

from launcher.trainer.config import TrainConfig
from launcher.trainer.flops import PEAKS, flops_per_token, peak_flops, utilization
from launcher.trainer.journal import find_peak


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H200", "fp32", 67),
        ("NVIDIA GH200 480GB", "tf32", 494.7),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp32", 16.4),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_a_known_device_has_the_peak_of_its_data_sheet(name: str, dtype: str, tera: float) -> None:
    assert peak_flops(name, dtype) == tera * 1e12


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cpu", "fp32"),
        ("", "fp32"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA A100-SXM-64GB", "bf16"),
        ("NVIDIA H20", "bf16"),
        ("NVIDIA A10G", "bf16"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("Tesla T4", "tf32"),
        ("NVIDIA H100 80GB HBM3", "fp8"),
    ],
)
def test_what_no_data_sheet_says_is_not_guessed(name: str, dtype: str) -> None:
    assert peak_flops(name, dtype) is None


def test_the_figures_of_each_device_agree_with_each_other() -> None:
    for peak in PEAKS:
        assert peak.fp32 and peak.fp16, peak
        assert peak.bf16 in (None, peak.fp16), peak
        assert peak.fp32 <= (peak.tf32 or peak.fp32) < peak.fp16, peak
        if peak.tf32 is not None:
            assert peak.fp16 / peak.tf32 == pytest.approx(2, rel=0.03), peak


@pytest.mark.parametrize(
    ("name", "amp", "tf32", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "off", True, 156),
        ("NVIDIA A100-SXM4-80GB", "off", False, 19.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", True, 312),
        ("Tesla T4", "off", True, 8.1),  # it has no TF32
    ],
)
def test_the_peak_is_that_of_the_type_in_use(name: str, amp: str, tf32: bool, tera: float) -> None:
    assert find_peak(name, TrainConfig(amp=amp, tf32=tf32)) == tera * 1e12
    assert find_peak("cpu", TrainConfig(amp=amp, tf32=tf32)) is None


def test_half_of_the_peak() -> None:
    # 6 x 1000 + 12 x 2 x 8 x 4
    assert flops_per_token(parameters=1000, layers=2, dim=8, context=4) == 6768
    assert utilization(tokens_per_s=4000, flops_per_token=1e9, peak=1e12, ranks=8) == 0.5
