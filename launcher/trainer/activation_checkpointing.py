"""Activation checkpointing: trade computation for memory."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from launcher.trainer.model import Model


def checkpoint_activations(model: Model) -> None:
    """Keep only the input of each block for the backward pass, which then computes the block's activations again.

    The second computation draws the same random numbers as the first one, so dropout hits the same places. Blocks
    keep their names, and what FSDP and torch.compile add around a block's `forward` stays outside of it.
    """
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
