"""Check that the ranks can communicate, and that they receive what was sent.

Every value is a whole number small enough for bf16 to hold (up to 256) and to add exactly, in any order:
a result is right or wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store as default_store
from torch.nn.parallel import DistributedDataParallel

from launcher.collectives.watch import Watch
from launcher.distributed import World, all_reduce_mean

ELEMENTS = 4096  # of what one rank sends to another
ADDED = 8  # ranks for each element of a sum
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LATE_S = 0.05  # the last rank enters the barrier this late, to expose a barrier that doesn't wait for it
OK, WRONG = "ok", "WRONG"
SAMPLES = 8  # per rank, of the DDP step
# Sums in another order round differently; a gradient that was not averaged is off by far more.
TOLERANCE = 1e-5
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")

if TYPE_CHECKING:  # Python 3.8 has no such types
    Check = Callable[[World, torch.dtype], "tuple[Tensor, Tensor]"]

# torch's messages for it: "ProcessGroupGloo does not support reduce_scatter", "Backend gloo does not support alltoall".
_UNSUPPORTED = re.compile(r"does not support|not supported|not implemented|no support for", re.IGNORECASE)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check in one dtype: `ok`, `WRONG`, or why it was skipped."""

    name: str
    dtype: str
    result: str


def run_collective(world: World, name: str, received: Tensor, sent: Tensor) -> None:
    """Run one collective on flat tensors; all_reduce and broadcast send what `received` holds.

    The last rank is the one that broadcasts, which nothing else in the test does.
    """
    size = world.world_size
    if name == "all_reduce":
        dist.all_reduce(received)
    elif name == "broadcast":
        dist.broadcast(received, src=size - 1)
    elif name == "all_gather":  # renamed in torch 2.13, where the old name warns; so is the next one
        (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(received, sent)
    elif name == "reduce_scatter":
        (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(received, sent)
    elif name == "all_to_all":
        dist.all_to_all_single(received, sent)
    else:  # to the next rank and from the previous one; all ranks do so at once, so no order is needed
        sending = dist.P2POp(dist.isend, sent, (world.rank + 1) % size)
        receiving = dist.P2POp(dist.irecv, received, (world.rank - 1) % size)
        for transfer in dist.batch_isend_irecv([sending, receiving]):
            transfer.wait()


def choose_values(world: World, name: str) -> tuple[Tensor, Tensor]:
    """Return what this rank sends in a collective, and what it must receive."""
    rank, size, part = world.rank, world.world_size, partial(make_part, world.world_size)
    addend = partial(part, is_added=True)
    if name == "all_reduce":
        return addend(rank), torch.stack([addend(other) for other in range(size)]).sum(0)
    if name == "broadcast":
        return part(rank), part(size - 1)
    if name == "all_gather":
        return part(rank), torch.cat([part(other) for other in range(size)])
    if name == "reduce_scatter":
        sent = torch.cat([addend(rank, other) for other in range(size)])
        return sent, torch.stack([addend(other, rank) for other in range(size)]).sum(0)
    if name == "all_to_all":
        sent = torch.cat([part(rank, other) for other in range(size)])
        return sent, torch.cat([part(other, rank) for other in range(size)])
    return part(rank, (rank + 1) % size), part((rank - 1) % size, rank)


def make_part(size: int, sender: int, receiver: int = 0, *, is_added: bool = False) -> Tensor:
    """Return what one of `size` ranks sends to another: no other two ranks have the same numbers.

    In an element that is added up, only eight ranks have more than 0, so that the sum stays below 256.
    """
    generator = torch.Generator().manual_seed(sender * size + receiver)
    numbers = torch.randint(1, 256 // ADDED, (ELEMENTS,), generator=generator)
    return numbers * ((torch.arange(ELEMENTS) + sender) % size < ADDED) if is_added else numbers


def check_collective(name: str, world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Run a collective; return the received and the expected values."""
    sent, expected = (values.to(world.device, dtype) for values in choose_values(world, name))
    received = sent.clone() if name in ("all_reduce", "broadcast") else torch.zeros_like(expected)
    run_collective(world, name, received, sent)
    return received, expected


def check_barrier(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Count the ranks that come to the barrier, and look at the count after it; the last rank arrives late."""
    if world.rank == world.world_size - 1:
        time.sleep(LATE_S)
    default_store().add("barrier", 1)
    dist.barrier()
    came = torch.tensor([default_store().add("barrier", 0)])
    return came, torch.full_like(came, world.world_size)


def check_ddp_step(
    world: World, dtype: torch.dtype, wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel
) -> tuple[Tensor, Tensor]:
    """Take a step with each rank's share of the samples, and one with all samples in this process alone.

    Return the gradients of both; those that differ by no more than rounding are made equal.
    """
    # TF32, which an image may turn on with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, rounds by more than the tolerance.
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)  # the same model and samples on every rank
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(world.device)
    inputs = torch.randn(world.world_size * SAMPLES, 16).to(world.device)
    expected = find_gradients(model, inputs)
    model.zero_grad()
    got = find_gradients(wrap(model), inputs[world.rank * SAMPLES : (world.rank + 1) * SAMPLES])
    is_close = (got - expected).abs() <= TOLERANCE * expected.abs().max()
    return torch.where(is_close, expected, got), expected


def find_gradients(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return all gradients of one backward pass, flat; the loss is a mean over the samples, as DDP expects."""
    model(inputs).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


WITHOUT_DTYPE: dict[str, Check] = {"barrier": check_barrier, "DDP step": check_ddp_step}
CHECKS: dict[str, Check] = {**{name: partial(check_collective, name) for name in COLLECTIVES}, **WITHOUT_DTYPE}


def run_checks(world: World, watch: Watch, checks: Mapping[str, Check] = CHECKS) -> list[CheckResult]:
    """Run each check in each dtype and print a line for each; return the same outcomes on every rank."""
    outcomes = []
    for name, check in checks.items():
        found = []
        for label in ("",) if name in WITHOUT_DTYPE else DTYPES:
            with watch.step(f"{name} {label}".strip()):
                found.append(run_check(world, name, label, check))
        if world.is_main:
            print(f"{name:14} {describe_outcomes(found)}", flush=True)
        outcomes += found
    return outcomes


def run_check(world: World, name: str, label: str, check: Check) -> CheckResult:
    """Run one check; each rank prints what is wrong on it."""
    if name == "send_recv" and world.world_size == 1:
        return CheckResult(name, label, "skipped: it needs two ranks")
    result, mismatch = OK, ""
    try:
        mismatch = describe_mismatch(*check(world, DTYPES.get(label, torch.float32)))
    except (RuntimeError, NotImplementedError) as error:
        # It is raised before anything is sent, so by all ranks alike.
        if not _UNSUPPORTED.search(str(error)):
            raise
        result = f"skipped: {world.backend} doesn't support it"
    if mismatch:
        print(f"rank {world.rank}: {name} {label + ' ' if label else ''}wrong: {mismatch}", flush=True)
    share = all_reduce_mean(float(not mismatch))  # of ranks that are right: all end with the same exit code
    return CheckResult(name, label, WRONG if mismatch or share < 1 else result)


def describe_outcomes(outcomes: list[CheckResult]) -> str:
    """Return `fp32 ok   bf16 ok`, or the one reason why both were skipped."""
    if all(outcome.result.startswith("skipped") for outcome in outcomes):
        return outcomes[0].result
    return "   ".join(f"{outcome.dtype} {outcome.result}".strip() for outcome in outcomes)


def describe_mismatch(got: Tensor, expected: Tensor) -> str:
    """Describe the first element that differs; return "" if none does."""
    differing = (got != expected).flatten().nonzero().flatten().tolist()
    if not differing:
        return ""
    right, wrong = (values.flatten()[differing[0]].item() for values in (expected, got))
    return f"expected {right:g}, got {wrong:g} (element {differing[0]}, {len(differing)} of {got.numel()} differ)"
