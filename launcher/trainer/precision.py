"""The types in which a GPU multiplies matrices; parameters, gradients, norms and the residual stream are fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from launcher.trainer.config import TrainConfig

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context that computes matrix products in a shorter type; the parameters keep theirs."""
    return torch.autocast(device.type, AMP_TYPES[amp]) if amp != "off" else nullcontext()


def choose_tf32(config: TrainConfig, device: torch.device) -> None:
    """Let a GPU compute fp32 matrix products in TF32, or forbid it, for the whole process; a CPU has no TF32.

    Torch's own default is to forbid it:
    https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
