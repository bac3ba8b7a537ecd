"""The data: the bytes of a text, and each rank's share of the samples."""

from __future__ import annotations

import hashlib
import mmap
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launcher.exchange import gather
from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.parallel import ParallelDims, on_main
from launcher.trainer.prepare_data import find_shakespeare

HELP_TOPICS = "the topics of Python's help()"


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


@dataclass(frozen=True)
class Data:
    """Samples to train on, then samples to validate; the last ones, since scattered ones would resemble neighbours.

    digest: of the text, to be compared on resume.
    """

    samples: TokenSequences
    train_size: int
    source: str
    digest: str

    @property
    def validation_size(self) -> int:
        """Return the number of samples that are never trained on."""
        return len(self.samples) - self.train_size


def load_data(config: TrainConfig, group: Any) -> Data:
    """Return what the config describes, the same on every rank; group: of all ranks, on the CPU."""
    tokens, digest = load_text(config.data, group)
    tokens = tokens[: config.data_size * config.context + 1] if config.data_size else tokens
    samples = TokenSequences(tokens, config.context)
    size, held_back = len(samples), config.validation_fraction
    validation_size = min(size, max(1, round(size * held_back))) if held_back else 0
    source = f"{short(len(tokens))} bytes of {config.data or HELP_TOPICS}"
    return Data(samples, size - validation_size, source, digest)


def load_text(path: str, group: Any) -> tuple[Tensor, str]:
    """Return the bytes of the text, which must not be changed, and their SHA-256.

    A rank whose host has the same file maps it into memory. If one hasn't, all get the text from rank 0.
    """
    digest = on_main(lambda: hashlib.sha256(open_text(path)).hexdigest(), group)
    content: Any = b""
    with suppress(ConfigError):
        content = open_text(path)
    has_it = hashlib.sha256(content).hexdigest() == digest
    size = gather(len(content), group)[0]
    text = torch.frombuffer(content if has_it else bytearray(size), dtype=torch.uint8)
    if not all(gather(has_it, group)):
        dist.broadcast(text, 0, group=group)
    return text, digest


def open_text(path: str) -> Any:
    """Return the bytes of a file, mapped into memory; "" and `shakespeare` name texts."""
    if not path:
        from pydoc_data.topics import topics

        return bytearray("".join(topics[name] for name in sorted(topics)).encode())
    try:
        with (find_shakespeare() if path == "shakespeare" else Path(path)).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch warns of what can't be written to
    except ValueError:
        raise ConfigError(f"{path}: an empty file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror} on rank 0's host") from None


class Loader:
    """This rank's batches; ranks that share matrix products get the same ones."""

    def __init__(self, data: Data, config: TrainConfig, dims: ParallelDims, device: torch.device):
        step = dims.batch_size * dims.dp_size * config.accumulate
        if data.train_size < step:
            given = f"one step takes {step} samples, got {data.train_size} to train on"
            raise ConfigError(f"too little data ({data.source}): {given}")
        self._data, self._batch_size, self._workers, self._device = data, dims.batch_size, config.workers, device
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
            collate_fn=tuple,  # `__getitems__` has put a batch together already
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


def ignore_sigterm(worker: int) -> None:
    """Let a worker live on after SIGTERM, which Slurm sends to all processes: its rank ends it, after it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def short(number: float) -> str:
    """Return 950, 12.3k or 4.56M."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.2f}M"
