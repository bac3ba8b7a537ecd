"""The models: a small GPT that reads and writes bytes or characters, modelled on nanoGPT, and a perceptron for numbers.

Both take a batch and its targets and return the mean loss, a scalar, so the loop treats them alike.
nanoGPT: https://github.com/karpathy/nanoGPT

The first weights are the same for a seed, however the ranks split the model. A model is built on the meta device, where
it has shapes and no memory. Each parameter is then drawn whole on the CPU, from a generator of its own, and a rank
keeps only its shard of it. So no rank ever holds more than its part of the model and one whole parameter, and the
weights don't depend on the number of ranks or on their GPUs.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.trainer.config import TrainConfig

BYTES = 256
FEATURES = 16


class Norm(nn.LayerNorm):
    """A layer norm that computes and returns fp32, also if FSDP gathers its weights in a shorter type.

    Autocast does the same on a GPU, but not on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


class Dropout(nn.Module):
    """Drop a share of the values while training, and scale up the rest, as nn.Dropout does.

    A rank that holds only a part of each sequence draws for the whole sequence, and uses its part: ranks that draw the
    same numbers then drop the same values together as one rank would.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.part, self.parts = 0, 1

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of shape (batch, length, dim), where `length` may be one part of the sequence."""
        if not self.share or self.parts == 1:
            return F.dropout(x, self.share, self.training)
        ones = torch.ones(x.shape[0], self.parts * x.shape[1], *x.shape[2:], dtype=x.dtype, device=x.device)
        return x * F.dropout(ones, self.share, self.training).chunk(self.parts, dim=1)[self.part]


class Attention(nn.Module):
    """Causal self-attention: each position attends to itself and to those before it.

    Query, key and value are separate matrices, so that tensor parallelism can give whole heads to ranks.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # (batch, length, dim) -> (batch, heads, length, head_dim); a rank may hold only some of the heads
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(x.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """A transformer block: attention, then an MLP, each added to its input."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.attention_norm = Norm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = Norm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x  # noqa: RET504  # as in nanoGPT: each part adds to x


class Transformer(nn.Module):
    """Predict the next token at each position of a (batch, length) tensor of tokens."""

    def __init__(
        self, layers: int, heads: int, dim: int, context: int, dropout: float = 0.0, tokens: int = BYTES
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        # Without first weights: to draw some on the meta device, torch imports its compiler for 1 s.
        self.embed_token = nn.Embedding.from_pretrained(torch.empty(tokens, dim), freeze=False)  # type: ignore[no-untyped-call]
        self.embed_position = nn.Embedding.from_pretrained(torch.empty(context, dim), freeze=False)  # type: ignore[no-untyped-call]
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = Norm(dim)
        self.head = nn.Linear(dim, tokens, bias=False)

    def weight_std(self, name: str, inputs: int) -> float:
        """Return the standard deviation of the first weights of a matrix.

        With small weights the first prediction is uniform over all tokens: for bytes the loss starts at ln 256 = 5.55.
        The matrices whose products are added to the residual stream, two per block, get less in deeper models,
        as in GPT-2 (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf,
        section 2.3).
        """
        added = name.endswith(("attention.project.weight", "mlp.2.weight"))
        return 0.02 / math.sqrt(2 * len(self.blocks)) if added else 0.02

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token."""
        return F.cross_entropy(self.predict(tokens).flatten(0, 1), targets.flatten())

    def predict(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token after each position: (batch, length, number of tokens)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        # The residual stream stays fp32.
        x = self.dropout((self.embed_token(tokens) + self.embed_position(positions)).float())
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Perceptron(nn.Module):
    """Predict one number from `FEATURES` numbers, through blocks that each add to their input."""

    def __init__(self, layers: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embed = nn.Linear(FEATURES, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(Norm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(layers)
        )
        self.head = nn.Linear(dim, 1)

    def weight_std(self, name: str, inputs: int) -> float:
        """Return the standard deviation of the first weights of a matrix: torch's own for linear layers.

        What the last matrix of each block adds to the residual stream gets less in deeper models.
        """
        added = name.startswith("blocks.") and name.endswith(".3.weight")
        return 1 / math.sqrt(3 * inputs * (len(self.blocks) if added else 1))

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        x = self.dropout(self.embed(features).float())  # as in Transformer
        for block in self.blocks:
            x = x + self.dropout(block(x))
        return F.mse_loss(self.head(x).squeeze(-1).float(), targets)


Model = Union[Transformer, Perceptron]  # noqa: UP007  # Python 3.8 has no `|` for types


def build_model(config: TrainConfig, vocabulary: str = "") -> Model:
    """Build the model on the meta device: with shapes, and without memory for its weights.

    vocabulary: the characters that the tokens stand for; "": the tokens are bytes.
    """
    with torch.device("meta"):
        if config.is_regression:
            return Perceptron(config.layers, config.dim, config.dropout)
        tokens = len(vocabulary) or BYTES
        return Transformer(config.layers, config.heads, config.dim, config.context, config.dropout, tokens)


def init_weights(model: Model, seed: int, device: torch.device) -> Model:
    """Give a model on the meta device memory on `device`, and the first weights of the seed; nothing is sent.

    Biases are 0, norms 1, and matrices normally distributed. Of a DTensor a rank keeps only its shard.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = parameter.shape
            if len(shape) == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            whole = torch.empty(shape).normal_(std=model.weight_std(name, shape[1]), generator=generator)
            copy_shard(whole, parameter)
    return model


def copy_shard(whole: Tensor, parameter: Any) -> None:
    """Copy a whole tensor, or this rank's shard of it, into a parameter of the same shape.

    Torch computes where the shard is; it has no public function for that, but its checkpoints use this one, too.
    """
    if not hasattr(parameter, "to_local"):
        parameter.copy_(whole)
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(whole.shape, parameter.device_mesh, parameter.placements)
    ranges = tuple(slice(first, first + size) for first, size in zip(offset, shape))  # noqa: B905  # Python 3.8
    parameter.to_local().copy_(whole[ranges])
