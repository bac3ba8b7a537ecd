"""The first weights, which of them decay, what the model sees, and the learning rate."""

from __future__ import annotations

import math

import pytest
import torch

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import Model, init_weights
from launcher.trainer.model import build_model as outline_model
from launcher.trainer.train import group_parameters, learning_rate

CPU = torch.device("cpu")


def build_model(config: TrainConfig) -> Model:
    return init_weights(outline_model(config), config.seed, CPU)


def test_an_outline_has_shapes_and_no_memory() -> None:
    for data in ("", "regression"):
        config = TrainConfig(data=data)
        outline, model = outline_model(config), build_model(config)
        assert {weights.device.type for weights in outline.parameters()} == {"meta"}
        shapes = [(name, weights.shape) for name, weights in outline.named_parameters()]
        assert shapes == [(name, weights.shape) for name, weights in model.named_parameters()]


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
    numbers = build_model(TrainConfig(data="regression", layers=layers))
    assert numbers.blocks[0][3].weight.std().item() == pytest.approx(1 / math.sqrt(3 * 256 * layers), rel=0.1)
    assert numbers.blocks[0][1].weight.std().item() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.1)


@pytest.mark.parametrize("data", ["", "regression"])
def test_norms_biases_and_embeddings_do_not_decay(data: str) -> None:
    model = build_model(TrainConfig(data=data, layers=1))
    names = {id(weights): name for name, weights in model.named_parameters()}
    decayed, others = group_parameters(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0)
    if data:  # its `embed` is a matrix product
        expected = ["embed.weight", "blocks.0.1.weight", "blocks.0.3.weight", "head.weight"]
    else:
        parts = ("attention.query", "attention.key", "attention.value", "attention.project", "mlp.0", "mlp.2")
        expected = [*(f"blocks.0.{part}.weight" for part in parts), "head.weight"]
    assert [names[id(weights)] for weights in decayed["params"]] == expected
    assert len(decayed["params"]) + len(others["params"]) == len(names)


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


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainConfig(lr=1.0, warmup_steps=4, final_lr_fraction=0.1)
    rates = [learning_rate(step, 24, config) for step in range(1, 25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[13] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert learning_rate(3, 3, TrainConfig(lr=1.0, warmup_steps=9)) == 1.0
