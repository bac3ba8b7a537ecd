"""`python run.py MODULE ARGUMENTS`: run a module as a rank on a stand-in for a GPU.

Its process group is gloo on CPUs, but bound to a device as NCCL's is, which makes torch build other groups differently.
"""

from __future__ import annotations

import runpy
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


class SplitSource:
    """What torch splits a group's NCCL communicator from: every rank of the group must take part in each split."""

    supports_splitting = True

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Take part in a split without joining what it makes."""
        store = distributed_c10d._get_default_store()
        splits = store.add(f"splits/{dist.get_rank()}", 1)
        store.add(f"split/{splits}", 1)
        while store.add(f"split/{splits}", 0) < dist.get_world_size():
            time.sleep(0.01)


join, source = dist.init_process_group, SplitSource()


def join_bound(*args: Any, **kwargs: Any) -> None:
    """Join the default group, and bind it to this rank's device."""
    join(*args, **kwargs)
    group = dist.group.WORLD
    assert group is not None
    group.bound_device_id = torch.device("cuda", dist.get_rank())


def barrier(*args: Any, **kwargs: Any) -> None:
    """Wait for all ranks; torch's own barrier makes a tensor on the bound device."""
    dist.all_reduce(torch.zeros(1))


dist.init_process_group = join_bound
dist.barrier = barrier
distributed_c10d._get_split_source = lambda group: source

del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
