"""Python values between ranks, on the devices of their process group. Torch's functions for it need numpy."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
import torch.distributed as dist


def gather(value: Any, group: Any = None) -> list[Any]:
    """Return the value of each rank, in rank order, on every rank."""
    own = _pack(value, group)
    sizes = [own.new_zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.full_like(sizes[0], len(own)), group=group)
    longest = int(max(sizes))
    found = [own.new_empty(longest) for _ in sizes]
    dist.all_gather(found, torch.nn.functional.pad(own, (0, longest - len(own))), group=group)
    return [_unpack(one) for one in found]


def broadcast(value: Any, group: Any = None) -> Any:
    """Return rank 0's value on every rank."""
    own = _pack(value, group)
    size = own.new_full((1,), len(own), dtype=torch.int64)
    dist.broadcast(size, 0, group=group)
    own = own if dist.get_rank() == 0 else own.new_empty(int(size))
    dist.broadcast(own, 0, group=group)
    return _unpack(own)


def _pack(value: Any, group: Any) -> torch.Tensor:
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


def _unpack(packed: torch.Tensor) -> Any:
    packed = packed.cpu()
    return pickle.loads(ctypes.string_at(packed.data_ptr(), len(packed)))
