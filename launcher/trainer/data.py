"""The data: a text as bytes, or a made-up regression; shared with all ranks, and dealt out to them.

A byte is a token, so there is no vocabulary to build and any file will do.
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
from launcher.trainer.model import FEATURES
from launcher.trainer.options import ConfigError
from launcher.trainer.parallel import Layout
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
    """What there is to learn: samples to train on, samples to validate with, and how to speak of them."""

    source: str
    train: Dataset[Batch]
    validation: Dataset[Batch]
    train_size: int
    validation_size: int
    size_bytes: int
    unit: str
    units_per_sample: int


def load_task(config: TrainConfig, world: World) -> Task:
    """Make the task that the config names; every rank gets the same one."""
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
    """Cut the last samples off for validation: neighbours in a text are alike, so no sample of it is between others."""
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
    """Read the file at `path`, or what a name stands for; "" is the text that every Python carries, for `help()`."""
    if not path:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("this Python was packaged without pydoc_data: give a text with --data FILE") from None
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        return (find_shakespeare(SHAKESPEARE_FOLDER) if path == "shakespeare" else Path(path)).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        shown, reason = path if path.isprintable() else repr(path), getattr(error, "strerror", None) or error
        raise ConfigError(f"{shown}: {reason} (on rank 0's machine, which alone reads the data)") from None


def share_from_main(read: Callable[[], bytes | None], world: World) -> Tensor:
    """Run `read` on rank 0 and return its bytes, or none, on every rank, as a uint8 tensor on the CPU.

    A `ConfigError` there becomes one on every rank, so that none is left waiting for the bytes.
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
        raise failure or ConfigError("rank 0 could not go on")
    shared = torch.empty(int(size), dtype=torch.uint8, device=world.device)
    if world.is_main and content:
        shared.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
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


def make_regression(size: int, seed: int) -> Batch:
    """Make `size` points of a smooth function of `FEATURES` numbers, with some noise; the seed decides all of them."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, FEATURES, generator=generator)
    directions = torch.randn(FEATURES, 8, generator=generator) / FEATURES**0.5
    targets = torch.sin(2 * features @ directions).sum(dim=1) / 2
    return features, targets + 0.1 * torch.randn(size, generator=generator)


class SkippingSampler(Sampler[int]):
    """A `DistributedSampler` that can leave out what was already seen of an epoch, without loading it."""

    def __init__(self, sampler: DistributedSampler[Batch]) -> None:
        self._sampler = sampler
        self._skip = 0

    @property
    def epoch_size(self) -> int:
        """Count this rank's samples of a whole epoch."""
        return len(self._sampler)

    def set_epoch(self, epoch: int, skip: int) -> None:
        """Take the order of this epoch, from this rank's sample number `skip` on."""
        self._sampler.set_epoch(epoch)
        self._skip = skip

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self._sampler), self._skip, None)  # type: ignore[arg-type]  # numbers, whatever its stub says

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._skip)


def build_loader(
    task: Task, config: TrainConfig, layout: Layout, world: World
) -> tuple[DataLoader[Batch], SkippingSampler]:
    """Deal the samples out over the data dimension; ranks that share a model's matrices get the same ones.

    The sampler reshuffles them in each epoch. Rank r of R takes each R-th sample of the same order,
    so the ranks' batches together are the same samples for every R with the same global batch.
    """
    if task.train_size < layout.global_batch:
        raise ConfigError(
            f"the data are too few: {task.source} leave {task.train_size} samples to train on, and one step takes "
            f"{layout.global_batch} ({layout.describe_batch()})"
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
    """Return the loader processes of a rank: small data are quicker without, others get the CPUs that are left."""
    if asked >= 0:
        return asked
    return 0 if size_bytes < SMALL_BYTES else min(MOST_WORKERS, distributed.cpu_count() - 1)


def stay_with_rank(worker: int) -> None:
    """Let a loader process live exactly as long as its rank.

    Slurm and torchrun send SIGTERM to all processes at once, and a rank whose loader died of it could not save.
    Left alone, a loader would notice the end of its rank after up to 5 s; Linux can tell it at once.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def deal_validation(size: int, batch_size: int, shares: int, share: int) -> list[list[int]]:
    """Deal the numbers below `size` out in batches: each to one share, once, and equally many batches to each share.

    A share that has none left gets empty batches, since sharded models need every rank in every pass.
    """
    mine = range(share, size, shares)
    most = -(-size // shares)
    return [list(mine[start : start + batch_size]) for start in range(0, most, batch_size)]


def short(number: float) -> str:
    """Write 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
