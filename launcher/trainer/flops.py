"""Model FLOPs utilization, as PaLM defines it: how much of a GPU's arithmetic the training uses.

PaLM: Scaling Language Modeling with Pathways, appendix B (https://arxiv.org/abs/2204.02311).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """The dense teraFLOPS of one PyTorch device; data sheets often print twice that, with sparsity.

    None means that the device has no units for that type.
    """

    names: str
    fp32: float | None
    tf32: float | None
    fp16: float | None
    bf16: float | None
    source: str


# `names` matches the whole torch.cuda.get_device_name() without the vendor's name, so that a MIG slice,
# a laptop's GPU or a cut-down model, which are slower, don't match.
# GeForce tensor cores are counted with FP32 accumulation, which PyTorch uses.
PEAKS = (
    Peak(r"V100-SXM[23]-\d+GB", 15.7, None, 125.0, None, "NVIDIA V100 data sheet"),
    Peak(r"V100-PCIE-\d+GB", 14.0, None, 112.0, None, "NVIDIA V100 data sheet"),
    Peak(r"V100S-PCIE-32GB", 16.4, None, 130.0, None, "NVIDIA V100 data sheet"),
    Peak(r"T4", 8.1, None, 65.0, None, "NVIDIA T4 data sheet"),
    Peak(r"A10", 31.2, 62.5, 125.0, 125.0, "NVIDIA A10 data sheet"),
    Peak(r"A30", 10.3, 82.0, 165.0, 165.0, "NVIDIA A30 data sheet"),
    Peak(r"A40", 37.4, 74.8, 149.7, 149.7, "NVIDIA A40 data sheet"),
    Peak(r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe", 19.5, 156.0, 312.0, 312.0, "NVIDIA A100 data sheet"),
    Peak(r"RTX A6000", 38.7, 77.4, 154.8, 154.8, "NVIDIA GA102 white paper, appendix B"),
    Peak(r"GeForce RTX 3090", 35.6, 35.6, 71.0, 71.0, "NVIDIA GA102 white paper, appendix A"),
    Peak(r"L4", 30.3, 60.0, 121.0, 121.0, "NVIDIA L4 data sheet, half of its figures with sparsity"),
    Peak(r"L40", 90.5, 90.5, 181.05, 181.05, "NVIDIA L40 data sheet"),
    Peak(r"L40S", 91.6, 183.0, 362.05, 362.05, "NVIDIA L40S data sheet"),
    Peak(r"GeForce RTX 4090", 82.6, 82.6, 165.2, 165.2, "NVIDIA Ada white paper, appendix A"),
    Peak(r"GeForce RTX 5090", 104.8, 104.8, 209.5, 209.5, "NVIDIA RTX Blackwell white paper, appendix A"),
    Peak(r"H100 80GB HBM3", 67.0, 494.7, 989.4, 989.4, "NVIDIA H100 white paper, SXM5"),
    Peak(r"H100 PCIe", 51.2, 378.0, 756.0, 756.0, "NVIDIA H100 white paper, PCIe"),
    Peak(r"H100 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H100 data sheet, half of its figures with sparsity"),
    Peak(r"H200", 67.0, 494.7, 989.4, 989.4, "NVIDIA H200 data sheet, half of its figures with sparsity"),
    Peak(r"H200 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H200 data sheet, half of its figures with sparsity"),
    Peak(r"GH200 (480GB|144G HBM3e)", 67.0, 494.7, 989.4, 989.4, "NVIDIA GH200 data sheet, half of its sparse figures"),
    Peak(r"B200", 75.0, 1100.0, 2250.0, 2250.0, "NVIDIA HGX B200 data sheet, per GPU, half of its sparse figures"),
    # PyTorch sees each of these cards as two devices.
    Peak(r"Instinct MI250X", 47.85, None, 191.5, 191.5, "AMD Instinct MI250X data sheet, half a card"),
    Peak(r"Instinct MI250", 45.25, None, 181.05, 181.05, "AMD Instinct MI250 data sheet, half a card"),
    Peak(r"Instinct MI210", 45.3, None, 181.0, 181.0, "AMD Instinct MI210 data sheet"),
    Peak(r"Instinct MI300X", 163.4, 653.7, 1307.4, 1307.4, "AMD Instinct MI300X data sheet"),
    Peak(r"Instinct MI325X", 163.4, 653.7, 1307.4, 1307.4, "AMD Instinct MI325X data sheet"),
)


def flops_per_token(parameters: int, layers: int, dim: int, context: int) -> float:
    """Return the floating-point operations of one token, forward and backward.

    Each parameter multiplies and adds once forward and twice backward (6), so `parameters` excludes those that are
    only looked up, the embeddings; attention adds 12 for each layer, each of its `dim` and each of the `context`.
    """
    return 6.0 * parameters + 12.0 * layers * dim * context


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Return the peak operations per second of fp32, tf32, fp16 or bf16; None without a known data sheet."""
    name = re.sub(r"^(NVIDIA|Tesla|AMD) ", "", device_name)
    for peak in PEAKS:
        if re.fullmatch(peak.names, name):
            tera = {"fp32": peak.fp32, "tf32": peak.tf32, "fp16": peak.fp16, "bf16": peak.bf16}.get(dtype)
            return None if tera is None else tera * 1e12
    return None


def utilization(tokens_per_s: float, flops_per_token: float, peak: float, ranks: int) -> float:
    """Return the share of the peak of all ranks' devices that the model's own arithmetic takes, 0 to 1."""
    return tokens_per_s * flops_per_token / (peak * ranks)
