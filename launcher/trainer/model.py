"""A small GPT that reads and writes bytes, after nanoGPT (https://github.com/karpathy/nanoGPT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.trainer.config import TrainConfig

VOCABULARY = 256


class Attention(nn.Module):
    """Let each position look at itself and at those before it."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        # (batch, length, 3 * dim) -> three of (batch, heads, length, dim / heads)
        split = self.query_key_value(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(x.transpose(1, 2).reshape(batch, length, dim))
        return projected


class Block(nn.Module):
    """Attend, then think: both add to what came in."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x  # noqa: RET504  # as in nanoGPT: each part adds to x


class ByteTransformer(nn.Module):
    """Predict the next byte at each position of a (batch, length) tensor of bytes."""

    def __init__(self, layers: int, heads: int, dim: int, context: int) -> None:
        super().__init__()
        self.embed_byte = nn.Embedding(VOCABULARY, dim)
        self.embed_position = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        # Small weights make the first guess even over all bytes: the loss begins at ln 256 = 5.55.
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per byte, a scalar."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed_byte(tokens) + self.embed_position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_model(config: TrainConfig) -> ByteTransformer:
    """Make the model with weights that depend on the seed alone, so that all ranks begin alike."""
    torch.manual_seed(config.seed)
    return ByteTransformer(config.layers, config.heads, config.dim, config.context)
