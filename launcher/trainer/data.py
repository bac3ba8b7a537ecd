"""The data: a text as bytes or characters, or a made-up regression; each rank takes its share, one batch at a time.

If a byte is a token, there is no vocabulary to build, and any file can be used, also one larger than the memory. If a
character is one, each rank holds the whole text in memory, as the numbers of its characters in the vocabulary.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, Tuple  # noqa: UP035

import torch
from torch import Tensor

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.model import FEATURES
from launcher.trainer.options import ConfigError
from launcher.trainer.rank_table import RankTable
from launcher.trainer.text import load_text

Batch = Tuple[Tensor, Tensor]  # noqa: UP006  # evaluated, on Python 3.8 too
REGRESSION_SAMPLES = 10_000
HELP_TOPICS = "the topics of Python's help()"
SMALL_BYTES = 64_000_000
MOST_WORKERS = 4
READ_AHEAD = 2  # batches per thread
# A shuffled list of as many numbers takes 128 MiB on each rank.
MOST_LISTED = 1 << 24
ROUNDS = 6
# Odd numbers below 2**32 with a spread of bits, from the finalizer of MurmurHash3.
FACTORS = (0x85EBCA6B, 0xC2B2AE35)


class SampleOrder:
    """The order of an epoch's samples: a permutation of the numbers below `size`, which depends on seed and epoch only.

    Up to `MOST_LISTED` numbers it is the permutation of torch's DistributedSampler with the same seed. A longer list
    would fill the memory of a host, so more numbers are permuted by computation, in the memory of one batch.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        generator = torch.Generator().manual_seed(seed + epoch)
        if size <= MOST_LISTED:
            self._listed: Tensor | None = torch.randperm(size, generator=generator)
            return
        self._listed = None
        self._half_bits = (size.bit_length() + 1) // 2
        self._keys = torch.randint(1 << 32, (ROUNDS,), generator=generator).tolist()

    def take(self, positions: Tensor) -> Tensor:
        """Return the numbers at these positions of it; both are int64 tensors of shape (N,)."""
        if self._listed is not None:
            return self._listed[positions]
        numbers = self._scramble(positions)
        # Walk on from each number that is too large; the cycle leads back into the range (Black and Rogaway, 2002).
        while bool((outside := numbers >= self.size).any()):
            numbers = torch.where(outside, self._scramble(numbers), numbers)
        return numbers

    def _scramble(self, numbers: Tensor) -> Tensor:
        """Permute the numbers of `2 * half_bits` bits by a Feistel network, which is invertible with any function."""
        bits, mask = self._half_bits, (1 << self._half_bits) - 1
        left, right = numbers >> bits, numbers & mask
        for key in self._keys:
            mixed = (right ^ key) * FACTORS[0]  # products wrap around at 64 bits
            mixed = (mixed ^ (mixed >> 15)) * FACTORS[1]
            left, right = right, left ^ ((mixed >> 16) & mask)
        return (left << bits) | right


class Samples(Protocol):
    """Numbered samples, of which any batch can be taken at once."""

    def __len__(self) -> int: ...

    def gather(self, numbers: Tensor, *, pin: bool) -> tuple[Tensor, ...]:
        """Copy the samples with these numbers into new CPU tensors, as compact as they are stored.

        pin: into page-locked memory, from which a GPU copies while it computes.
        """

    def unpack(self, parts: tuple[Tensor, ...]) -> Batch:
        """Turn what `gather` returned, meanwhile on the device, into a batch for the model."""


class TokenSequences:
    """Cut text into sequences of `context` tokens; the target is the same sequence shifted by one token."""

    def __init__(self, text: Tensor, context: int) -> None:
        length = context + 1
        # A view of shape (sequences, context + 1); the last token of each is also the first of the next.
        self._rows = text.unfold(0, length, context) if len(text) >= length else text.new_empty(0, length)

    def __len__(self) -> int:
        return len(self._rows)

    def gather(self, numbers: Tensor, *, pin: bool) -> tuple[Tensor, ...]:
        rows = torch.empty(len(numbers), self._rows.shape[1], dtype=self._rows.dtype, pin_memory=pin)
        return (torch.index_select(self._rows, 0, numbers, out=rows),)

    def unpack(self, parts: tuple[Tensor, ...]) -> Batch:
        rows = parts[0].long()
        return rows[:, :-1], rows[:, 1:]


class Points:
    """The points of a regression, and their targets."""

    def __init__(self, features: Tensor, targets: Tensor) -> None:
        self._columns = features, targets

    def __len__(self) -> int:
        return len(self._columns[0])

    def gather(self, numbers: Tensor, *, pin: bool) -> tuple[Tensor, ...]:
        taken = (column.index_select(0, numbers) for column in self._columns)
        return tuple(part.pin_memory() if pin else part for part in taken)

    def unpack(self, parts: tuple[Tensor, ...]) -> Batch:
        features, targets = parts
        return features, targets


@dataclass(frozen=True)
class Task:
    """What to learn: training samples, then validation samples, and the words that describe them.

    vocabulary: the characters that the tokens stand for, in order; "" if the tokens are bytes, or there are none.
    """

    source: str
    samples: Samples
    train_size: int
    validation_size: int
    size_bytes: int
    unit: str
    units_per_sample: int
    vocabulary: str = ""


def load_task(config: TrainConfig, world: World, group: Any) -> Task:
    """Return the task that the config describes; every rank gets the same one. group: of all ranks, on the CPU."""
    if config.kind == "regression":
        features, targets = make_regression(config.data_size or REGRESSION_SAMPLES, config.seed)
        size_bytes = features.nbytes + targets.nbytes
        return split(config, Points(features, targets), source="a made-up regression", size_bytes=size_bytes)
    most = config.data_size * config.context + 1 if config.data_size else None  # tokens
    vocabulary, name = "", config.data or HELP_TOPICS
    if config.tokens == "characters":
        vocabulary, text = number_characters(load_text(config.data, world, group), most, name)
        source = f"{short(len(text))} characters of {name}, {len(vocabulary)} different ones"
    else:
        text = load_text(config.data, world, group, most)
        source = f"{short(len(text))} bytes of {name}"
    task = split(config, TokenSequences(text, config.context), source=source, size_bytes=text.nbytes)
    return replace(task, vocabulary=vocabulary)


def number_characters(text: Tensor, most: int | None, name: str) -> tuple[str, Tensor]:
    """Return the different characters of a text in UTF-8, sorted, and for each character its number among them.

    most: take only that many characters. name: of the text, for the ConfigError if it isn't UTF-8.
    """
    try:
        characters = ctypes.string_at(text.data_ptr(), len(text)).decode("utf-8")[:most]  # numpy may be missing
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: byte {error.start} isn't UTF-8 text, so it has no characters; fix: use --tokens bytes"
        ) from None
    vocabulary = "".join(sorted(set(characters)))
    codes = torch.frombuffer(bytearray(characters.encode("utf-32-le")), dtype=torch.int32) if characters else text.int()
    known = torch.tensor(list(map(ord, vocabulary)), dtype=torch.int32)
    small = next(kind for kind in (torch.uint8, torch.int16, torch.int32) if len(known) <= torch.iinfo(kind).max + 1)
    return vocabulary, torch.searchsorted(known, codes, out_int32=True).to(small)


def split(config: TrainConfig, samples: Samples, *, source: str, size_bytes: int) -> Task:
    """Reserve the last samples for validation: scattered ones would resemble their neighbours in the training text."""
    size = len(samples)
    validation_size = min(size, max(1, round(size * config.validation_fraction))) if config.validation_fraction else 0
    return Task(
        source=source,
        samples=samples,
        train_size=size - validation_size,
        validation_size=validation_size,
        size_bytes=size_bytes,
        unit="tokens" if config.kind == "text" else "samples",
        units_per_sample=config.context if config.kind == "text" else 1,
    )


def make_regression(size: int, seed: int) -> Batch:
    """Return `size` points of a smooth function of `FEATURES` numbers, with noise; they depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, FEATURES, generator=generator)
    directions = torch.randn(FEATURES, 8, generator=generator) / FEATURES**0.5
    targets = torch.sin(2 * features @ directions).sum(dim=1) / 2
    return features, targets + 0.1 * torch.randn(size, generator=generator)


@dataclass(frozen=True)
class Loader:
    """Load this rank's batches, of training or validation samples."""

    task: Task
    device: torch.device
    seed: int
    batch_size: int
    shares: int  # of the data, one per data-parallel rank
    share: int  # this rank's, from 0
    threads: int  # that read ahead

    @property
    def epoch_size(self) -> int:
        """Return the number of this rank's samples in a whole epoch."""
        return self.task.train_size // self.shares

    def load_epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, without this rank's first `skip` samples.

        Share r of R is every R-th sample of the same order, as torch's DistributedSampler deals them with drop_last.
        So with the same global batch the ranks' batches together hold the same samples for every R.
        """
        order = SampleOrder(self.task.train_size, self.seed, epoch)
        starts = range(skip, self.epoch_size - self.batch_size + 1, self.batch_size)
        own = (torch.arange(start, start + self.batch_size) for start in starts)
        return self.load(order.take(places * self.shares + self.share) for places in own)

    def load_validation(self, numbers: Iterable[range]) -> Iterator[Batch]:
        """Yield a batch of validation samples for each range of their numbers."""
        return self.load(torch.tensor(part) + self.task.train_size for part in numbers)

    def load(self, numbers: Iterable[Tensor]) -> Iterator[Batch]:
        """Yield a batch on the device for each tensor of sample numbers."""
        samples, pin = self.task.samples, self.device.type == "cuda"
        prepare = partial(torch.cuda.set_device, self.device) if pin else None  # pinning uses the thread's own device
        for parts in read_ahead(partial(samples.gather, pin=pin), numbers, self.threads, prepare):
            # The copy of a pinned tensor doesn't wait; torch reuses its memory only after the copy.
            yield samples.unpack(tuple(part.to(self.device, non_blocking=True) for part in parts))


def read_ahead(
    gather: Callable[[Tensor], tuple[Tensor, ...]],
    numbers: Iterable[Tensor],
    threads: int,
    prepare: Callable[[], object] | None = None,
) -> Iterator[tuple[Tensor, ...]]:
    """Yield `gather` of each tensor of numbers, in order; with threads, the next batches are gathered meanwhile.

    A text that isn't in memory is read from the disk while it is gathered, without Python's lock.
    prepare: run in each thread before its first batch.
    """
    left = iter(numbers)
    if not threads:
        yield from map(gather, left)
        return
    pool = ThreadPoolExecutor(threads, initializer=prepare)
    try:
        pending = deque(pool.submit(gather, taken) for taken in islice(left, READ_AHEAD * threads))
        while pending:
            parts = pending.popleft().result()
            pending.extend(pool.submit(gather, taken) for taken in islice(left, 1))
            yield parts
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def build_loader(task: Task, config: TrainConfig, table: RankTable, world: World) -> Loader:
    """Distribute the samples over the data dimension; ranks that share a model's matrices get the same samples."""
    if task.train_size < table.global_batch:
        raise ConfigError(
            f"too little data ({task.source}): one step takes {table.global_batch} samples "
            f"({table.describe_batch()}), got {task.train_size} to train on"
        )
    return Loader(
        task=task,
        device=world.device,
        seed=config.seed,
        batch_size=table.batch_size,
        shares=table.data_size,
        share=table.data_rank,
        threads=count_workers(config.workers, task.size_bytes),
    )


def count_workers(asked: int, size_bytes: int) -> int:
    """Return the number of reading threads per rank: `asked`, or for -1 none for small data, else the spare CPUs."""
    if asked >= 0:
        return asked
    return 0 if size_bytes < SMALL_BYTES else min(MOST_WORKERS, distributed.cpu_count() - 1)


def deal_validation(size: int, batch_size: int, shares: int, share: int) -> Iterator[range]:
    """Yield this share's batches of the numbers below `size`; each number is in exactly one share.

    All shares have equally many batches, some of them empty, since sharded models need every rank in every pass.
    """
    mine = range(share, size, shares)
    most = -(-size // shares)
    return (mine[start : start + batch_size] for start in range(0, most, batch_size))


def short(number: float) -> str:
    """Return 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
