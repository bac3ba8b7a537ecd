"""Imports torch, and what it imports at the first step of an optimizer."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint.state_dict
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel

_weights = torch.nn.Parameter(torch.ones(2))
_optimizer = torch.optim.AdamW([_weights])
_weights.sum().backward()  # type: ignore[no-untyped-call]
_optimizer.step()
