"""The data: a text as bytes or characters, or a made-up regression, and each rank's share of the samples."""

from __future__ import annotations

import hashlib
import mmap
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launcher.exchange import broadcast, gather
from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.model import FEATURES
from launcher.trainer.parallel import ParallelDims
from launcher.trainer.prepare_data import find_shakespeare

HELP_TOPICS = "the topics of Python's help()"
REGRESSION_SAMPLES = 10_000


class TokenSequences(Dataset[Any]):
    """Cut tokens into sequences of length `context`; the targets are the same sequence shifted by one token.

    A DataLoader calls `__getitems__` for a whole batch.
    """

    def __init__(self, tokens: Tensor, context: int) -> None:
        length = context + 1
        # A view of shape (sequences, context + 1); the last token of each is also the first of the next.
        self._rows = tokens.unfold(0, length, context) if len(tokens) >= length else tokens.new_empty(0, length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        rows = self._rows[torch.tensor(numbers)].long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Points(Dataset[Any]):
    """Points of a smooth function of `FEATURES` numbers, with noise; they depend only on the seed."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._features = torch.randn(size, FEATURES, generator=generator)
        directions = torch.randn(FEATURES, 8, generator=generator) / FEATURES**0.5
        clean = torch.sin(2 * self._features @ directions).sum(dim=1) / 2
        self._targets = clean + 0.1 * torch.randn(size, generator=generator)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        return self._features[numbers], self._targets[numbers]


@dataclass(frozen=True)
class Data:
    """Samples to train on, then samples to validate; the last ones, since scattered ones would resemble neighbours.

    vocabulary: the characters that the tokens stand for, in order; "" if the tokens are bytes, or there are none.
    identity: of the text, to be compared on resume.
    """

    samples: TokenSequences | Points
    train_size: int
    source: str
    unit: str
    units_per_sample: int
    identity: str
    vocabulary: str = ""

    @property
    def validation_size(self) -> int:
        """Return the number of samples that are never trained on."""
        return len(self.samples) - self.train_size


def load_data(config: TrainConfig, group: Any) -> Data:
    """Return what the config describes, the same on every rank; group: of all ranks, on the CPU."""
    vocabulary = ""
    if config.is_regression:
        size = config.data_size or REGRESSION_SAMPLES
        samples: TokenSequences | Points = Points(size, config.seed)
        source, identity, unit, units = "a made-up regression", f"regression {size}", "samples", 1
    else:
        text, identity = load_text(config.data, group)
        name, what = config.data or HELP_TOPICS, "bytes"
        if config.tokens == "characters":
            vocabulary, tokens = number_characters(text, name)
            name, what = f"{name}, {len(vocabulary)} different ones", "characters"
        else:
            tokens = torch.frombuffer(text, dtype=torch.uint8)
        tokens = tokens[: config.data_size * config.context + 1] if config.data_size else tokens
        source = f"{short(len(tokens))} {what} of {name}"
        samples, unit, units = TokenSequences(tokens, config.context), "tokens", config.context
    size = len(samples)
    validation_size = min(size, max(1, round(size * config.validation_fraction))) if config.validation_fraction else 0
    return Data(samples, size - validation_size, source, unit, units, identity, vocabulary)


def load_text(path: str, group: Any) -> tuple[Any, str]:
    """Return the bytes of the text, which must not be changed, and their SHA-256.

    A rank whose host has the same file maps it into memory. If one hasn't, all get the text from rank 0.
    """
    content: Any = None
    try:
        content = open_text(path)
        found: Any = hashlib.sha256(content).hexdigest()
    except ConfigError as error:
        found = error
    identities = gather(found, group)
    if isinstance(identities[0], ConfigError):
        raise identities[0]
    if set(identities) != {identities[0]}:
        content = broadcast(bytearray(content) if dist.get_rank() == 0 else None, group)
    return content, identities[0]


def open_text(path: str) -> Any:
    """Return the bytes of a file, mapped into memory; "" and `shakespeare` name texts."""
    if not path:
        from pydoc_data.topics import topics

        return bytearray("".join(topics[name] for name in sorted(topics)).encode())
    file_path = find_shakespeare(Path("data")) if path == "shakespeare" else Path(path)
    try:
        with file_path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch warns of what can't be written to
    except ValueError:
        raise ConfigError(f"{path}: an empty file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror} on rank 0's host") from None


def number_characters(text: Any, name: str) -> tuple[str, Tensor]:
    """Return the different characters of a text in UTF-8, sorted, and for each character its number among them."""
    try:
        characters = bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        fix = "use --tokens bytes"
        raise ConfigError(f"{name}: byte {error.start} isn't UTF-8 text, so it has no characters; fix: {fix}") from None
    vocabulary = "".join(sorted(set(characters)))
    numbers = {character: number for number, character in enumerate(vocabulary)}
    return vocabulary, torch.tensor([numbers[character] for character in characters], dtype=torch.int32)


class Loader:
    """This rank's batches; ranks that share matrix products get the same ones."""

    def __init__(self, data: Data, config: TrainConfig, dims: ParallelDims, batch_size: int, device: torch.device):
        step = batch_size * dims.dp_size * config.accumulate
        if data.train_size < step:
            given = f"one step takes {step} samples, got {data.train_size} to train on"
            raise ConfigError(f"too little data ({data.source}): {given}")
        self._data, self._batch_size, self._workers, self._device = data, batch_size, config.workers, device
        self._sampler: DistributedSampler[int] = DistributedSampler(
            range(data.train_size),  # type: ignore[arg-type]  # only its length counts
            dims.dp_size,
            dims.dp_rank,
            seed=config.seed,
            drop_last=True,
        )

    def load_epoch(self, epoch: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's batches of an epoch, without its first `skip` samples.

        With the same global batch, the batches of all ranks together hold the same samples for any number of ranks.
        """
        self._sampler.set_epoch(epoch)
        numbers = list(self._sampler)[skip:]
        batches: DataLoader[Any] = DataLoader(
            self._data.samples,
            self._batch_size,
            sampler=numbers,
            drop_last=True,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            collate_fn=keep,
            worker_init_fn=ignore_sigterm,
            generator=torch.Generator(),  # or it would draw from the one that dropout continues on resume
        )
        for inputs, targets in batches:
            yield self._move(inputs), self._move(targets)

    def load_validation(self, shares: int, share: int) -> Iterator[tuple[tuple[Tensor, Tensor], int]]:
        """Yield batches of this share of the validation samples, and how many samples of each count.

        All shares have equally many batches, since sharded models need every rank in every pass: where a share has no
        sample left, one that doesn't count takes its place.
        """
        size, first = self._data.validation_size, self._data.train_size
        own = range(share, size, shares)
        for start in range(0, -(-size // shares), self._batch_size):
            part = own[start : start + self._batch_size]
            inputs, targets = self._data.samples.__getitems__([first + number for number in part or (0,)])
            yield (self._move(inputs), self._move(targets)), len(part)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)


def keep(batch: Any) -> Any:
    """Return what `__getitems__` has put together already."""
    return batch


def ignore_sigterm(worker: int) -> None:
    """Let a worker live on after SIGTERM, which Slurm sends to all processes: its rank ends it, after it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def short(number: float) -> str:
    """Return 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
