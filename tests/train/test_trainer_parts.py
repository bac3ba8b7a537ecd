"""Data, model and checkpoint, each on its own, in this process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoint import make_folder, save_checkpoint
from launcher.trainer.config import ConfigError, TrainConfig
from launcher.trainer.data import ByteSequences, build_loader, read_text, share_from_main
from launcher.trainer.loop import short
from launcher.trainer.model import build_model


def world_of(world_size: int, rank: int = 0) -> World:
    return World(rank, world_size, rank, world_size, torch.device("cpu"), "gloo", "torchrun")


def test_every_python_carries_a_text() -> None:
    text = read_text("")
    assert len(text) > 100_000
    assert b"assert" in text
    assert text == read_text("")


def test_a_missing_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text("no/such.txt")
    assert str(caught.value) == (
        "no/such.txt: No such file or directory (on rank 0's machine, which alone reads the data)"
    )


@pytest.mark.parametrize("text", [b"", b"abc", bytes(range(256)) * 10])
def test_shared_text_is_the_text(text: bytes) -> None:
    world = distributed.init("gloo", timeout_s=5)
    try:
        shared = share_from_main(lambda: text, world)
    finally:
        distributed.shutdown()
    assert shared.dtype == torch.uint8
    assert bytes(shared.tolist()) == text


def test_sequences_cover_the_text_once_and_targets_are_one_byte_on() -> None:
    text = torch.arange(33, dtype=torch.uint8)
    sequences = ByteSequences(text, context=8)
    assert len(sequences) == 4
    pairs = [sequences[index] for index in range(4)]
    assert torch.cat([tokens for tokens, _ in pairs]).tolist() == list(range(32))
    assert torch.cat([targets for _, targets in pairs]).tolist() == list(range(1, 33))
    assert len(ByteSequences(text[:8], context=8)) == 0
    assert len(ByteSequences(text[:0], context=8)) == 0


def test_ranks_take_different_sequences_and_each_epoch_another_order() -> None:
    text = torch.arange(0, 241, dtype=torch.uint8)
    config = TrainConfig(context=10, batch_size=3)

    def starts(rank: int, epoch: int) -> list[int]:
        loader, sampler = build_loader(text, config, world_of(2, rank))
        sampler.set_epoch(epoch)
        return [start for tokens, _ in loader for start in tokens[:, 0].tolist()]

    assert sorted(starts(0, 1) + starts(1, 1)) == list(range(0, 240, 10))
    assert starts(0, 1) != starts(0, 2)
    assert starts(0, 1) == starts(0, 1)


def test_a_text_too_short_for_one_step_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build_loader(torch.zeros(100, dtype=torch.uint8), TrainConfig(), world_of(2))
    assert str(caught.value) == (
        "the text is too short: 100 bytes are 1 sequences of 64, and one step takes 32 (2 ranks x batch size 16)"
    )


def test_the_first_guess_is_even_and_the_seed_decides_it() -> None:
    tokens = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    loss = build_model(TrainConfig())(tokens, tokens)
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)
    assert build_model(TrainConfig())(tokens, tokens).item() == loss.item()
    assert build_model(TrainConfig(seed=2))(tokens, tokens).item() != loss.item()


def test_the_model_sees_no_later_byte() -> None:
    model = build_model(TrainConfig())
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = 7
    model(tokens, tokens)
    model(changed, tokens)
    assert torch.equal(seen[0][0, :5], seen[1][0, :5])
    assert not torch.equal(seen[0][0, 5:], seen[1][0, 5:])


def test_a_checkpoint_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(AttributeError):
        save_checkpoint(path, {"step": lambda: 2})
    assert torch.load(path, weights_only=True) == {"step": 1}
    save_checkpoint(path, {"step": 3})
    assert torch.load(path, weights_only=True) == {"step": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "a" / "b"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        make_folder(str(tmp_path / "file" / "b"))
    assert str(caught.value) == f"{tmp_path}/file/b: can't save there: Not a directory"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_950, "1.00M"),
        (4_560_000, "4.56M"),
    ],
)
def test_short(number: float, text: str) -> None:
    assert short(number) == text
