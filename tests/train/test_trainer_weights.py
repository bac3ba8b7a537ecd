"""The first weights, which of them decay, and what the model sees."""

from __future__ import annotations

import math

import pytest
import torch

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import Transformer, init_weights
from launcher.trainer.model import build_model as outline_model

CPU = torch.device("cpu")


def build_model(config: TrainConfig) -> Transformer:
    return init_weights(outline_model(config), config.seed, CPU)


def test_each_parameter_has_its_own_numbers_whatever_else_the_model_has() -> None:
    small, large = (dict(build_model(TrainConfig(layers=2, context=size)).named_parameters()) for size in (8, 64))
    assert [name for name in small if not torch.equal(small[name], large[name])] == ["embed_position.weight"]
    matrices = [weights for weights in small.values() if weights.shape == (64, 64)]
    assert len(matrices) == 8
    assert len({weights.sum().item() for weights in matrices}) == 8


@pytest.mark.parametrize("layers", [1, 8])
def test_what_is_added_to_the_residual_stream_gets_smaller_weights_in_deeper_models(layers: int) -> None:
    text = dict(build_model(TrainConfig(layers=layers)).named_parameters())
    added = {name for name in text if name.endswith(("attention.project.weight", "mlp.2.weight"))}
    assert len(added) == 2 * layers
    for name, weights in text.items():
        if weights.dim() == 2:
            std = 0.02 / math.sqrt(2 * layers) if name in added else 0.02
            assert weights.std().item() == pytest.approx(std, rel=0.1), name
        else:
            assert weights.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name


def test_the_first_guess_is_even_and_the_seed_decides_it() -> None:
    tokens = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    loss = build_model(TrainConfig())(tokens, tokens)
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)
    assert build_model(TrainConfig())(tokens, tokens).item() == loss.item()
    assert build_model(TrainConfig(seed=2))(tokens, tokens).item() != loss.item()


def test_the_model_sees_no_later_byte() -> None:
    model = build_model(TrainConfig())
    tokens = torch.zeros(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = 7
    seen, other = model.predict(tokens), model.predict(changed)
    assert torch.equal(seen[0, :5], other[0, :5])
    assert not torch.equal(seen[0, 5:], other[0, 5:])
