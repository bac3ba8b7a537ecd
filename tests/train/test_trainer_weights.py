"""The first weights, which of them decay, activation checkpointing, precision, and how often the ranks vote."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.trainer.config import TrainConfig
from launcher.trainer.model import build_model, outline_model
from launcher.trainer.optimization import group_parameters
from launcher.trainer.parallel import checkpoint_activations
from launcher.trainer.precision import choose_tf32
from launcher.trainer.stopping import MOST_STEPS, VOTE_EVERY_S, count_steps

CPU = torch.device("cpu")


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


class DropoutModel(nn.Module):
    """Blocks with dropout, which count their computations."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2))
        self.count = 0
        for block in self.blocks:
            block[0].register_forward_hook(self.add)

    def add(self, *seen: Any) -> None:
        self.count += 1

    def learn(self) -> tuple[int, list[str], list[Tensor]]:
        """Return the number of computations, the names of the parameters, and their gradients."""
        torch.manual_seed(1)
        x = torch.ones(4, 8)
        for block in self.blocks:
            x = block(x)
        x.square().sum().backward()
        names, weights = zip(*self.named_parameters(), strict=True)
        return self.count, list(names), [weight.grad for weight in weights]


def test_activation_checkpointing_computes_twice_and_drops_the_same() -> None:
    torch.manual_seed(0)
    plain, saving = DropoutModel(), DropoutModel()
    saving.load_state_dict(plain.state_dict())
    checkpoint_activations(saving)  # type: ignore[arg-type]
    (once, names, gradients), (twice, same_names, same_gradients) = plain.learn(), saving.learn()
    assert (once, twice) == (2, 4)
    assert same_names == names
    assert all(torch.equal(*pair) for pair in zip(gradients, same_gradients, strict=True))


def test_tf32_is_a_choice_of_the_gpu_alone() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        choose_tf32(TrainConfig(), CPU)
        assert torch.get_float32_matmul_precision() == before
        for tf32, precision in ((True, "high"), (False, "highest")):
            choose_tf32(TrainConfig(tf32=tf32), torch.device("cuda"))
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0, MOST_STEPS), (1e-4, MOST_STEPS), (VOTE_EVERY_S / 4.5, 4), (VOTE_EVERY_S, 1), (10, 1)],
)
def test_long_steps_have_a_vote_each(step_s: float, steps: int) -> None:
    assert count_steps(step_s) == steps
