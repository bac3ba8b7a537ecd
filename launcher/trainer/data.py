"""The data: a text as bytes, which rank 0 sends to all ranks, or a made-up regression; each rank takes its share.

A byte is a token, so there is no vocabulary to build, and any file can be used.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, Subset, TensorDataset

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.layout import Layout
from launcher.trainer.model import FEATURES
from launcher.trainer.options import ConfigError
from launcher.trainer.prepare_data import find_shakespeare

Batch = tuple[Tensor, Tensor]
SHAKESPEARE_FOLDER = Path("data")
REGRESSION_SAMPLES = 10_000
HELP_TOPICS = "the topics of Python's help()"
SMALL_BYTES = 64_000_000
MOST_WORKERS = 4
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


@dataclass(frozen=True)
class Task:
    """What to learn: training samples, validation samples, and the words that describe them."""

    source: str
    train: Dataset[Batch]
    validation: Dataset[Batch]
    train_size: int
    validation_size: int
    size_bytes: int
    unit: str
    units_per_sample: int


def load_task(config: TrainConfig, world: World) -> Task:
    """Return the task that the config describes; every rank gets the same one."""
    if config.kind == "regression":
        features, targets = make_regression(config.data_size or REGRESSION_SAMPLES, config.seed)
        samples: Dataset[Batch] = TensorDataset(features, targets)  # type: ignore[assignment]  # a tuple of two
        source, size, size_bytes = "a made-up regression", len(targets), features.nbytes + targets.nbytes
        return split(config, samples, size, source=source, size_bytes=size_bytes)
    text = share_from_main(lambda: read_text(config.data), world)
    if config.data_size:
        text = text[: config.data_size * config.context + 1]
    sequences = ByteSequences(text, config.context)
    source = f"{short(len(text))} bytes of {config.data or HELP_TOPICS}"
    return split(config, sequences, len(sequences), source=source, size_bytes=len(text))


def split(config: TrainConfig, samples: Dataset[Batch], size: int, *, source: str, size_bytes: int) -> Task:
    """Reserve the last samples for validation: scattered ones would resemble their neighbours in the training text."""
    validation_size = min(size, max(1, round(size * config.validation_fraction))) if config.validation_fraction else 0
    train_size = size - validation_size
    return Task(
        source=source,
        train=Subset(samples, range(train_size)),
        validation=Subset(samples, range(train_size, size)),
        train_size=train_size,
        validation_size=validation_size,
        size_bytes=size_bytes,
        unit="tokens" if config.kind == "text" else "samples",
        units_per_sample=config.context if config.kind == "text" else 1,
    )


def read_text(path: str) -> bytes:
    """Read the file or the named text `path`; "" is the text that every Python includes for `help()`."""
    if not path:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("this Python lacks pydoc_data; fix: name a text with --data FILE") from None
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        return (find_shakespeare(SHAKESPEARE_FOLDER) if path == "shakespeare" else Path(path)).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        shown, reason = path if path.isprintable() else repr(path), getattr(error, "strerror", None) or error
        raise ConfigError(f"{shown}: {reason} (on rank 0's host, which alone reads the data)") from None


def share_from_main(read: Callable[[], bytes | None], world: World) -> Tensor:
    """Run `read` on rank 0, and return its bytes on every rank as a uint8 tensor on the CPU; None gives no bytes.

    A `ConfigError` on rank 0 is raised on every rank, so that none is left waiting for the bytes.
    """
    content, failure = b"", None
    if world.is_main:
        try:
            content = read() or b""
        except ConfigError as error:
            failure = error
    size = torch.tensor(-1 if failure else len(content), device=world.device)
    dist.broadcast(size, src=0)
    if size < 0:
        raise failure or ConfigError("rank 0 could not continue")
    shared = torch.empty(int(size), dtype=torch.uint8, device=world.device)
    if world.is_main and content:
        shared.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(shared, src=0)
    return shared.cpu()


class ByteSequences(Dataset[Batch]):
    """Cut text into sequences of `context` bytes; the target is the same sequence shifted by one byte."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return max(0, len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Batch:
        start = index * self.context
        piece = self.text[start : start + self.context + 1].long()
        return piece[:-1], piece[1:]


def make_regression(size: int, seed: int) -> Batch:
    """Return `size` points of a smooth function of `FEATURES` numbers, with noise; they depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, FEATURES, generator=generator)
    directions = torch.randn(FEATURES, 8, generator=generator) / FEATURES**0.5
    targets = torch.sin(2 * features @ directions).sum(dim=1) / 2
    return features, targets + 0.1 * torch.randn(size, generator=generator)


class SkippingSampler(Sampler[int]):
    """A `DistributedSampler` that can skip the samples of an epoch that were already seen, without loading them."""

    def __init__(self, sampler: DistributedSampler[Batch]) -> None:
        self._sampler = sampler
        self._skip = 0

    @property
    def epoch_size(self) -> int:
        """Return the number of this rank's samples in a whole epoch."""
        return len(self._sampler)

    def set_epoch(self, epoch: int, skip: int) -> None:
        """Use the order of this epoch, and skip this rank's first `skip` samples."""
        self._sampler.set_epoch(epoch)
        self._skip = skip

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self._sampler), self._skip, None)  # type: ignore[arg-type]  # numbers, whatever its stub says

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._skip)


def build_loader(
    task: Task, config: TrainConfig, layout: Layout, world: World
) -> tuple[DataLoader[Batch], SkippingSampler]:
    """Distribute the samples over the data dimension; ranks that share a model's matrices get the same samples.

    The sampler reshuffles them in each epoch. Rank r of R takes every R-th sample of the same order,
    so with the same global batch the ranks' batches together hold the same samples for every R.
    """
    if task.train_size < layout.global_batch:
        raise ConfigError(
            f"too little data ({task.source}): one step takes {layout.global_batch} samples "
            f"({layout.describe_batch()}), got {task.train_size} to train on"
        )
    dealt: DistributedSampler[Batch] = DistributedSampler(
        task.train, layout.data_size, layout.data_rank, seed=config.seed, drop_last=True
    )
    sampler = SkippingSampler(dealt)
    workers = count_workers(config.workers, task.size_bytes)
    loader = DataLoader(
        task.train,
        layout.batch_size,
        sampler=sampler,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=stay_with_rank,
        pin_memory=world.device.type == "cuda",
    )
    return loader, sampler


def count_workers(asked: int, size_bytes: int) -> int:
    """Return the number of loader processes per rank: `asked`, or for -1 none for small data, else the spare CPUs."""
    if asked >= 0:
        return asked
    return 0 if size_bytes < SMALL_BYTES else min(MOST_WORKERS, distributed.cpu_count() - 1)


def stay_with_rank(worker: int) -> None:
    """Make a loader process live exactly as long as its rank.

    Slurm and torchrun send SIGTERM to all processes at once; a rank whose loader died from it could not save.
    By itself a loader notices the end of its rank only after up to 5 s; Linux kills it at once.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def deal_validation(size: int, batch_size: int, shares: int, share: int) -> list[list[int]]:
    """Return this share's batches of the numbers below `size`; each number is in exactly one share.

    All shares have equally many batches, some of them empty, since sharded models need every rank in every pass.
    """
    mine = range(share, size, shares)
    most = -(-size // shares)
    return [list(mine[start : start + batch_size]) for start in range(0, most, batch_size)]


def short(number: float) -> str:
    """Return 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
