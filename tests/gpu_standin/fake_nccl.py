"""A stand-in for ProcessGroupNCCL: gloo, with what NCCL refuses, and with how it hangs.

It takes the place of the class in torch, whose own code then makes, binds and splits its groups.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gpu_standin import fake_cuda

FAILED = (
    "[rank{rank}]:[E1127 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={name}, Timeout(ms)={timeout_ms}) ran for {timeout_ms} milliseconds before "
    "timing out."
)


def fake() -> None:
    """Let torch take this class for NCCL's."""
    module: Any = distributed_c10d
    module.ProcessGroupNCCL, module._NCCL_AVAILABLE = StandIn, True
    module.default_pg_nccl_timeout = StandIn.Options._timeout


class Options:
    """What torch sets before it makes a group."""

    _timeout = timedelta(minutes=10)
    is_high_priority_stream = False
    split_from: StandIn | None = None
    split_color = 0
    global_ranks_in_group: list[int] = []  # noqa: RUF012  # torch replaces it
    group_name = ""


class Launched(dist._Work):
    """A collective that has ended, or is stuck: to wait for it is to let the device wait, and returns at once."""

    def __init__(self, result: Any, end: Callable[[], object] = lambda: None) -> None:
        """Remember how it ends: a send and its receive only together."""
        super().__init__()
        self._end = end
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: object = None) -> bool:
        """Return; only a barrier waits."""
        self._end()
        return True

    def is_completed(self) -> bool:
        """Return whether the device has got that far."""
        return not fake_cuda.stuck.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is done."""
        return self._future


class StandIn(dist.ProcessGroup):
    """A communicator of the ranks of one group.

    If a rank is gone, the device is stuck, the collectives after that do nothing, and the watchdog ends the process
    after the time limit. No collective raises an error.
    """

    Options = Options
    supports_splitting = True
    _device_types = [torch.device("cuda")]  # noqa: RUF012  # as torch has it

    def __init__(self, store: dist.Store, rank: int, size: int, options: Options) -> None:
        super().__init__(rank, size)
        self.options, self._store, self._timeout = options, store, options._timeout
        self._names = {"name": "", "desc": ""}
        self._number = self._splits = 0
        if options.split_from is not None:
            options.split_from.perform_nocolor_split(None)
        self._gloo = distributed_c10d.ProcessGroup(dist.PrefixStore("gloo", store), rank, size)
        backend = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout=timedelta(days=1))
        kind = distributed_c10d.ProcessGroup.BackendType.GLOO
        self._gloo._set_default_backend(kind)
        self._gloo._register_backend(torch.device("cpu"), kind, backend)

    def perform_nocolor_split(self, device: object) -> None:
        """Take part in a split, as every rank of this group must, in the same order: ncclCommSplit is a collective."""
        self._splits += 1
        key = f"split/{self._splits}"
        if self._store.add(key, 1) == self.size():
            self._store.set(f"{key}/done", "")
        self._store.wait([f"{key}/done"])

    def split_group(
        self, ranks: list[int], timeout: timedelta, opts: Options, group_name: str, group_desc: str, **_: Any
    ) -> StandIn | None:
        """Make a group of some of these ranks; all of them take part."""
        self.perform_nocolor_split(None)
        if self.rank() not in ranks:
            return None
        options = Options()
        options._timeout = timeout
        made = StandIn(dist.PrefixStore(group_name, self._store), ranks.index(self.rank()), len(ranks), options)
        made.setGroupName(group_name)
        made.setGroupDesc(group_desc)
        return made

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Connect to the other ranks now."""
        self.bound_device_id = device
        self._run("barrier", [])

    def _run(self, name: str, tensors: Any, *args: Any) -> Launched:
        self._number += 1
        if any(fake_cuda.is_on_device(tensor) is False for tensor in fake_cuda._find_tensors([tensors, *args])):
            raise RuntimeError("No backend type associated with device type cpu")
        words = (tensors, *args) if name != "barrier" else ()
        options = next((word for word in words if hasattr(word, "reduceOp")), None)
        is_mean = options is not None and options.reduceOp == dist.ReduceOp.AVG  # which gloo lacks
        if is_mean:
            options.reduceOp = dist.ReduceOp.SUM
        if fake_cuda.stuck.is_set():
            return Launched(tensors)
        end = partial(self._end, name, getattr(self._gloo, name)(*words))
        if name in ("send", "recv"):
            return Launched(tensors, end)
        end()
        if is_mean:
            for tensor in fake_cuda._find_tensors(tensors):
                tensor.div_(self.size())
        return Launched(tensors)

    def _end(self, name: str, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if not re.search("onnection|peer|pipe", str(error)):
                raise  # a mistake of the caller
            self._stick(name)

    def _stick(self, name: str) -> None:
        timeout_ms = round(self._timeout.total_seconds() * 1000)
        line = FAILED.format(rank=dist.get_rank(), number=self._number, name=name.upper(), timeout_ms=timeout_ms)

        def watch() -> None:
            time.sleep(timeout_ms / 1000)
            print(line, file=sys.stderr, flush=True)
            os.abort()

        fake_cuda.stuck.set()
        threading.Thread(target=watch, daemon=True).start()

    def barrier(self, opts: Any = None) -> Launched:
        """Wait for the other ranks; NCCL's barrier waits for the device as well."""
        work = self._run("barrier", [])
        fake_cuda.synchronize()
        return work

    def _get_backend(self, device: object) -> StandIn:
        return self

    def supports_tensor_alloc(self, device: object) -> bool:
        """Return whether it has memory of its own."""
        return False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None: ...
    def shutdown(self) -> None:
        """Leave the group."""

    def name(self) -> str:
        """Return the backend's name."""
        return "nccl"

    def getGroupName(self) -> str:  # the names in C++
        """Return the name that torch gave."""
        return self._names["name"]

    def setGroupName(self, name: str) -> None:
        """Keep the name."""
        self._names["name"] = name

    def getGroupDesc(self) -> str:
        """Return the description that torch gave."""
        return self._names["desc"]

    def setGroupDesc(self, desc: str) -> None:
        """Keep the description."""
        self._names["desc"] = desc


def _collective(name: str) -> Any:
    def run(self: StandIn, *args: Any, **kwargs: Any) -> Launched:
        return self._run(name, *args, *kwargs.values())

    return run


for _name in (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "all_gather_single",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce", "reduce_scatter",
    "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall", "gather", "scatter", "send", "recv",
):  # fmt: skip
    setattr(StandIn, _name, _collective(_name))
