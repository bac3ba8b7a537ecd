"""The model: a small GPT that reads and writes bytes, modelled on https://github.com/karpathy/nanoGPT.

The first weights are the same for a seed, however the ranks split the model. A model is built on the meta device, where
it has shapes and no memory. Each parameter is then drawn whole on the CPU, from a generator of its own, and a rank
keeps only its shard of it. So no rank ever holds more than its part of the model and one whole parameter, and the
weights don't depend on the number of ranks or on their GPUs.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.trainer.config import TrainConfig

BYTES = 256


class Norm(nn.LayerNorm):
    """A layer norm that computes and returns fp32, also if FSDP gathers its weights in a shorter type.

    Autocast does the same on a GPU, but not on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


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
        self.dropout = nn.Dropout(dropout)
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

    def __init__(self, layers: int, heads: int, dim: int, context: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # Without first weights: to draw some on the meta device, torch imports its compiler for 1 s.
        self.embed_token = nn.Embedding.from_pretrained(torch.empty(BYTES, dim), freeze=False)  # type: ignore[no-untyped-call]
        self.embed_position = nn.Embedding.from_pretrained(torch.empty(context, dim), freeze=False)  # type: ignore[no-untyped-call]
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = Norm(dim)
        self.head = nn.Linear(dim, BYTES, bias=False)

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


def build_model(config: TrainConfig) -> Transformer:
    """Build the model on the meta device: with shapes, and without memory for its weights."""
    with torch.device("meta"):
        return Transformer(config.layers, config.heads, config.dim, config.context, config.dropout)


def init_weights(model: Transformer, seed: int, device: torch.device) -> Transformer:
    """Give a model on the meta device memory on `device`, and the first weights of the seed; nothing is sent.

    Biases are 0, norms 1, and matrices normally distributed, so narrowly that the first prediction is uniform over all
    tokens: for bytes the loss starts at ln 256 = 5.55. The matrices whose products are added to the residual stream,
    two per block, get less in deeper models, as in GPT-2 (section 2.3 of
    https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            is_added = name.endswith(("attention.project.weight", "mlp.2.weight"))
            std = 0.02 / math.sqrt(2 * len(model.blocks)) if is_added else 0.02
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            copy_shard(torch.empty(parameter.shape).normal_(std=std, generator=generator), parameter)
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
