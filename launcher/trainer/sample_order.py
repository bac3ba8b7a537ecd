"""The order of the samples: each epoch another one, which depends only on the seed and the epoch."""

from __future__ import annotations

import torch
from torch import Tensor

# A shuffled list of as many numbers takes 128 MiB on each rank.
MOST_LISTED = 1 << 24
ROUNDS = 6
# Odd numbers below 2**32 with a spread of bits, from the finalizer of MurmurHash3.
FACTORS = (0x85EBCA6B, 0xC2B2AE35)


class Order:
    """A permutation of the numbers below `size`; `take` returns the numbers at some positions of it.

    Up to `MOST_LISTED` numbers it is the permutation of torch's DistributedSampler with the same seed. A longer list
    would fill the memory of a host, so more numbers are permuted by computation, in the memory of one batch.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        generator = torch.Generator().manual_seed(seed + epoch)
        if size <= MOST_LISTED:
            self._listed: Tensor | None = torch.randperm(size, generator=generator)
            return
        self._listed = None
        self._half_bits = (size.bit_length() + 1) // 2
        self._keys = torch.randint(1 << 32, (ROUNDS,), generator=generator).tolist()

    def take(self, positions: Tensor) -> Tensor:
        """Return the numbers at these positions; both are int64 tensors of shape (N,)."""
        if self._listed is not None:
            return self._listed[positions]
        numbers = self._scramble(positions)
        # Walk on from each number that is too large; the cycle leads back into the range (Black and Rogaway, 2002).
        while bool((outside := numbers >= self.size).any()):
            numbers = torch.where(outside, self._scramble(numbers), numbers)
        return numbers

    def _scramble(self, numbers: Tensor) -> Tensor:
        """Permute the numbers of `2 * half_bits` bits by a Feistel network, which is invertible with any function."""
        bits, mask = self._half_bits, (1 << self._half_bits) - 1
        left, right = numbers >> bits, numbers & mask
        for key in self._keys:
            mixed = (right ^ key) * FACTORS[0]  # products wrap around at 64 bits
            mixed = (mixed ^ (mixed >> 15)) * FACTORS[1]
            left, right = right, left ^ ((mixed >> 16) & mask)
        return (left << bits) | right
