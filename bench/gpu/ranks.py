"""What the ranks do in the parts that need a special program: `python bench/gpu/ranks.py ACTION`, under `launch`.

With a GPU that the rank may see, it uses cuda:LOCAL_RANK and NCCL; otherwise the CPU and gloo.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")

TRAINED_STEPS = 20
# A GPU's clock has 1 to 3 GHz, so this kernel takes 30 to 90 s; each part ends its ranks earlier.
LONG_KERNEL_CYCLES = 90_000_000_000
LONG_CALL_S = 60
TIMEOUT_S, SHORT_TIMEOUT_S = 60, 10  # of a collective; the short one must also cover the start
# What torch::jit::Pickler writes for an empty dict: protocol 2, the dict, the end.
EMPTY_DUMP = b"\x80\x02}."
# As NCCL prints it with NCCL_DEBUG=WARN (tests/unit/diagnosis/seen_lines.txt).
DUPLICATE_LINE = "init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 31000"


def fill_memory() -> None:
    """Request more memory than there is, in one piece: that fails at once, and disturbs no other process."""
    size_bytes = 2 * torch.cuda.get_device_properties(DEVICE).total_memory if ON_GPU else 1 << 50
    torch.empty(size_bytes, dtype=torch.uint8, device=DEVICE)


def hold_memory() -> None:
    """Hold a tenth of the GPU's memory until a signal ends this rank."""
    size_bytes = torch.cuda.get_device_properties(DEVICE).total_memory // 10 if ON_GPU else 1
    held = torch.empty(size_bytes, dtype=torch.uint8, device=DEVICE)
    say_ready(f"holds {held.numel()} bytes")
    signal.pause()


def hold_most_memory() -> None:
    """Hold three quarters of the GPU's memory, written to, until a signal ends this rank."""
    size_bytes = torch.cuda.get_device_properties(DEVICE).total_memory // 4 * 3
    held = torch.ones(size_bytes, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    say_ready(f"holds {held.numel()} bytes")
    signal.pause()


def all_reduce() -> None:
    """Sum numbers with the other ranks."""
    numbers = join()
    dist.all_reduce(numbers)
    numbers.sum().item()  # waits for the GPU


def miss_collective() -> None:
    """Let a collective time out: the last rank doesn't join it, or a lone rank's GPU doesn't get to it."""
    numbers = join(SHORT_TIMEOUT_S)
    dist.all_reduce(numbers)
    if not ON_GPU:
        Path(os.environ["LAUNCH_FILES"], f"nccl_trace_rank_{RANK}").write_bytes(EMPTY_DUMP)
    if WORLD_SIZE > 1 and RANK == WORLD_SIZE - 1:
        say_ready("doesn't join")
        time.sleep(LONG_CALL_S)
        return
    if WORLD_SIZE == 1 and ON_GPU:
        torch.cuda._sleep(LONG_KERNEL_CYCLES)
    dist.all_reduce(numbers)
    numbers.sum().item()


def run_kernel() -> None:
    """Wait for a long kernel; on a CPU, for a C function that holds the interpreter's lock, which is as hard."""
    if ON_GPU:
        torch.cuda._sleep(LONG_KERNEL_CYCLES)
    say_ready("waits for the kernel")
    wait_for_kernel()


def train() -> None:
    """Train a small network, fail halfway in the first attempt, and tell the last loss."""
    join()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64, device=DEVICE), device_ids=[DEVICE] if ON_GPU else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in range(TRAINED_STEPS):
        numbers = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * WORLD_SIZE + RANK)).to(DEVICE)
        loss = (model(numbers) - numbers).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == TRAINED_STEPS // 2 and os.environ["LAUNCH_ATTEMPT"] == "0":
            sys.exit(3)
    say_ready(f"after {TRAINED_STEPS} steps, loss {loss.item()!r}")
    del model  # before its process group: bench/gpu runs on CPUs, too, and gloo could hang
    dist.destroy_process_group()


def wait_for_kernel() -> None:
    """Block in C; the stack shows this name."""
    if ON_GPU:
        torch.cuda.synchronize()
    else:
        ctypes.PyDLL(None).sleep(LONG_CALL_S)


def print_duplicate() -> None:
    """Fail as NCCL does if two ranks use one GPU."""
    sys.exit(DUPLICATE_LINE)


def join(timeout_s: float = TIMEOUT_S) -> torch.Tensor:
    """Join the process group; return numbers of 4 MiB to sum."""
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    numbers = torch.zeros(1 << 20, device=DEVICE)  # makes the CUDA context before the other ranks wait for this one
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo",
        timeout=timedelta(seconds=timeout_s),
        device_id=DEVICE if ON_GPU else None,
    )
    return numbers


def say_ready(what: str) -> None:
    """Print the line that the part waits for, with the device: on the wrong one a part must not pass."""
    print(f"ready: rank {RANK} pid {os.getpid()} on {DEVICE.type} {what}", flush=True)


ACTIONS = (
    fill_memory, hold_memory, hold_most_memory, all_reduce, miss_collective, run_kernel, train, print_duplicate,
)  # fmt: skip

if __name__ == "__main__":
    {action.__name__: action for action in ACTIONS}[sys.argv[1]]()
