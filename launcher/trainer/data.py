"""The text as bytes: read by rank 0, shared with all ranks, cut into sequences.

A byte is a token, so there is no vocabulary to build and any file will do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launcher.distributed import World
from launcher.trainer.config import ConfigError, TrainConfig

Batch = tuple[Tensor, Tensor]


def read_text(path: str) -> bytes:
    """Read the file at `path`; "" is the text that every Python carries, the topics of `help()`."""
    if not path:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("this Python was packaged without pydoc_data: give a text with --data FILE") from None
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror} (on rank 0's machine, which alone reads the data)") from None


def share_from_main(read: Callable[[], bytes], world: World) -> Tensor:
    """Run `read` on rank 0 and return its bytes on every rank, as a uint8 tensor on the CPU.

    A `ConfigError` there becomes one on every rank, so that none is left waiting for the text.
    """
    text, failure = b"", None
    if world.is_main:
        try:
            text = read()
        except ConfigError as error:
            failure = error
    size = torch.tensor(-1 if failure else len(text), device=world.device)
    dist.broadcast(size, src=0)
    if size < 0:
        raise failure or ConfigError("rank 0 could not read the data")
    shared = torch.empty(int(size), dtype=torch.uint8, device=world.device)
    if world.is_main and text:
        shared.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(shared, src=0)
    return shared.cpu()


class ByteSequences(Dataset[Batch]):
    """Cut text into sequences of `context` bytes; the target is the same, one byte on."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return max(0, len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Batch:
        start = index * self.context
        piece = self.text[start : start + self.context + 1].long()
        return piece[:-1], piece[1:]


def build_loader(
    text: Tensor, config: TrainConfig, world: World
) -> tuple[DataLoader[Batch], DistributedSampler[Batch]]:
    """Deal the sequences out to the ranks; the sampler reshuffles them in each epoch (`set_epoch`)."""
    sequences = ByteSequences(text, config.context)
    needed = world.world_size * config.batch_size
    if len(sequences) < needed:
        raise ConfigError(
            f"the text is too short: {len(text)} bytes are {len(sequences)} sequences of {config.context}, "
            f"and one step takes {needed} ({world.world_size} ranks x batch size {config.batch_size})"
        )
    sampler: DistributedSampler[Batch] = DistributedSampler(sequences, world.world_size, world.rank, seed=config.seed)
    return DataLoader(sequences, config.batch_size, sampler=sampler, drop_last=True), sampler
