"""The data: which samples each rank gets, in which order, and where the text comes from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.data import Data, Loader, TokenSequences, short
from launcher.trainer.parallel import ParallelDims

CPU = torch.device("cpu")
CONFIG = TrainConfig()
# Run on each of three ranks; it prints what they read.
READ = """
import json, os
from launcher import distributed, exchange
from launcher.trainer.data import load_text
from launcher.trainer.parallel import make_cpu_group
world = distributed.init("gloo", 120)
os.chdir(f"node{world.rank}")
group = make_cpu_group(world)
seen, texts = {}, []
for name in ("same", "differs", "missing", "empty", ""):
    try:
        text, digest = load_text(name, group)
        texts.append(text)
        seen[name] = [bytes(text[:20]).decode("latin-1"), len(text), digest]
    except Exception as error:
        seen[name] = f"{type(error).__name__}: {error}"
seen["gathered"] = exchange.gather("x" * (100 * world.rank + 1)) == ["x", "x" * 101, "x" * 201]
seen["mapped"] = [name for name in ("same", "differs") if f"node{world.rank}/{name}" in open("/proc/self/maps").read()]
print(json.dumps(seen), flush=True)
distributed.leave(0)
"""


def dims_of(size: int, rank: int = 0, batch_size: int = 3) -> ParallelDims:
    return ParallelDims("ddp", size, 1, 1, rank, batch_size)


def text_data(size: int, context: int, fraction: float = 0.0) -> Data:
    samples = TokenSequences(torch.arange(size, dtype=torch.int32), context)
    held_back = round(len(samples) * fraction)
    return Data(samples, len(samples) - held_back, "a text", "")


def starts_of(loader: Loader, epoch: int = 1, skip: int = 0) -> list[list[int]]:
    """Return the first token of each sequence, batch by batch."""
    return [tokens[:, 0].tolist() for tokens, _ in loader.load_epoch(epoch, skip)]


def test_sequences_cover_the_text_once_and_targets_are_one_token_on() -> None:
    sequences = TokenSequences(torch.arange(33, dtype=torch.uint8), context=8)
    assert len(sequences) == 4
    inputs, targets = sequences.__getitems__([0, 1, 2, 3])
    assert inputs.flatten().tolist() == list(range(32))
    assert targets.flatten().tolist() == list(range(1, 33))
    assert len(TokenSequences(torch.arange(8), context=8)) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_is_in_order_in_batches_and_continues_in_its_middle(workers: int) -> None:
    data = text_data(251, context=10)  # 25 sequences: 2 ranks x 4 batches of 3 leave one
    for rank in range(2):
        loader = Loader(data, replace(CONFIG, workers=workers), dims_of(2, rank), CPU)
        first, second = starts_of(loader, 1), starts_of(loader, 2)
        assert [len(batch) for batch in first] == [3] * 4
        assert first != second
        assert starts_of(loader, 1, skip=6) == first[2:]
        assert starts_of(Loader(data, replace(CONFIG, seed=2), dims_of(2, rank), CPU)) != first


def test_data_too_few_for_one_step_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Loader(text_data(65, context=64), CONFIG, dims_of(2), CPU)
    assert str(caught.value) == "too little data (a text): one step takes 6 samples, got 1 to train on"


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 6))
def test_validation_takes_each_sample_once_and_as_many_batches_on_each_rank(
    size: int, batch_size: int, shares: int
) -> None:
    data = Data(TokenSequences(torch.arange(100 + size + 1), 1), 100, "", "")
    loader = Loader(data, CONFIG, dims_of(1, batch_size=batch_size), CPU)
    dealt = [list(loader.load_validation(shares, share)) for share in range(shares)]
    counted = [int(first) for batches in dealt for (inputs, _), number in batches for first in inputs[:number, 0]]
    assert sorted(counted) == list(range(100, 100 + size))
    assert len({len(batches) for batches in dealt}) == 1
    assert all(len(inputs) == max(1, number) <= batch_size for batches in dealt for (inputs, _), number in batches)


def test_ranks_without_the_same_text_get_it_from_rank_0(starter: Any, tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / f"node{rank}"
        folder.mkdir()
        (folder / "same").write_text("the same everywhere")
        (folder / "differs").write_text("of rank 0" if rank == 0 else "another 1")
        (folder / "empty").touch()
    ranks = starter.start_ranks(3, lambda rank: ["-c", READ])
    for rank in ranks:
        assert (rank.wait(), rank.stderr) == (0, "")
    seen = [json.loads(rank.stdout) for rank in ranks]
    for name, content in (("same", "the same everywhere"), ("differs", "of rank 0")):
        assert [one[name][:2] for one in seen] == [[content, len(content)]] * 3
        assert len({one[name][2] for one in seen}) == 1
    assert [one["missing"] for one in seen] == ["ConfigError: missing: No such file or directory on rank 0's host"] * 3
    assert [one["empty"] for one in seen] == ["ConfigError: empty: an empty file"] * 3
    assert seen[0][""] == seen[2][""]
    assert [one["gathered"] for one in seen] == [True] * 3  # values of different sizes
    assert [one["mapped"] for one in seen] == [["same", "differs"], ["same"], ["same"]]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999.4, "999"), (12_345, "12.3k"), (999_949, "999.9k"), (4_560_000, "4.56M")]
)
def test_short(number: float, text: str) -> None:
    assert short(number) == text
