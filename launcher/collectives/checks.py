"""Check that the ranks can communicate, and that they receive what was sent.

Every value is a whole number small enough for bf16 to hold (up to 256) and to add exactly, in any order:
a result is right or wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch._dynamo  # DDP's first model imports it, and on a slow disk that takes longer than a step may
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.collectives.watch import Watch, default_store
from launcher.distributed import World

ELEMENTS = 4096
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LATE_S = 0.05  # the last rank enters the barrier this late, to expose a barrier that doesn't wait for it
OK, WRONG = "ok", "WRONG"
SAMPLES = 8  # per rank, of the DDP step
# Sums in another order round differently; a gradient that was not averaged is off by far more.
TOLERANCE = 1e-5

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


def check_all_reduce(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum over all ranks; return the received and the expected values.

    Each element is the sum 1 + 2 + ... over at most eight ranks; which ranks differs from element to element.
    """
    turns = (_count(world) + world.rank) % world.world_size + 1
    parts = min(world.world_size, 8)
    values = torch.where(turns <= parts, turns, 0).to(dtype)
    dist.all_reduce(values)
    return values, torch.full_like(values, parts * (parts + 1) / 2)


def check_broadcast(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Broadcast from the last rank, which nothing else in the test does."""
    source = world.world_size - 1
    sent = (_count(world) % 251 + 1).to(dtype)
    values = sent.clone() if world.rank == source else torch.zeros_like(sent)
    dist.broadcast(values, src=source)
    return values, sent


def check_all_gather(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gather a different row from each rank on all ranks; the rows must arrive in rank order."""
    expected = _rows(torch.arange(world.world_size, device=world.device), dtype)
    rows = [torch.zeros_like(expected[0]) for _ in range(world.world_size)]
    dist.all_gather(rows, expected[world.rank])
    return torch.stack(rows), expected


def check_reduce_scatter(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum over all ranks, and keep on each rank its own part of the sum.

    At most eight ranks add to an element, and the parts differ, so that a wrong part is detected.
    """
    size, parts = world.world_size, min(world.world_size, 8)
    weights = torch.stack([(_count(world) + part) % 31 + 1 for part in range(size)])
    adds = (_count(world) + world.rank) % size < parts
    values = torch.zeros(ELEMENTS, dtype=dtype, device=world.device)
    reduce_scatter(values, (weights * adds).to(dtype).flatten())
    return values, (weights[world.rank] * parts).to(dtype)


def check_all_to_all(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Send each rank a different part; the values identify sender and receiver."""
    everyone = torch.arange(world.world_size, device=world.device)
    sent = _rows(world.rank * world.world_size + everyone, dtype)
    expected = _rows(everyone * world.world_size + world.rank, dtype)
    values = torch.zeros_like(sent)
    dist.all_to_all_single(values, sent)
    return values, expected


def check_send_recv(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Send to the next rank and receive from the previous one, all at once."""
    ranks = torch.tensor([world.rank, (world.rank - 1) % world.world_size], device=world.device)
    sent, expected = _rows(ranks, dtype)
    values = torch.zeros_like(sent)
    shift(world, values, sent)
    return values, expected


def check_barrier(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Set a key before the barrier and look for every rank's key after it; the last rank arrives late."""
    store = default_store()
    if world.rank == world.world_size - 1:
        time.sleep(LATE_S)
    store.set(f"barrier/{world.rank}", "came")
    dist.barrier()
    words = [f"barrier/{rank}" for rank in range(world.world_size)]
    # If all is well, one query is enough; one query per key would make a million with 1,000 ranks.
    came = torch.tensor([True] * len(words) if store.check(words) else [store.check([word]) for word in words])
    return came, torch.ones_like(came)


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


CHECKS: dict[str, Check] = {
    "all_reduce": check_all_reduce,
    "broadcast": check_broadcast,
    "all_gather": check_all_gather,
    "reduce_scatter": check_reduce_scatter,
    "all_to_all": check_all_to_all,
    "send_recv": check_send_recv,
    "barrier": check_barrier,
    "DDP step": check_ddp_step,
}
WITHOUT_DTYPE = ("barrier", "DDP step")


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
    skipped, mismatch = "", ""
    try:
        mismatch = describe_mismatch(*check(world, DTYPES.get(label, torch.float32)))
    except (RuntimeError, NotImplementedError) as error:
        # It is raised before anything is sent, so by all ranks alike.
        if not _UNSUPPORTED.search(str(error)):
            raise
        skipped = f"skipped: {world.backend} doesn't support it"
    if mismatch:
        print(f"rank {world.rank}: {name} {label + ' ' if label else ''}wrong: {mismatch}", flush=True)
    return CheckResult(name, label, (skipped or OK) if agree(world, right=not mismatch) else WRONG)


def describe_outcomes(outcomes: list[CheckResult]) -> str:
    """Return `fp32 ok   bf16 ok`, or the one reason why both were skipped."""
    if all(outcome.result.startswith("skipped") for outcome in outcomes):
        return outcomes[0].result
    return "   ".join(f"{outcome.dtype} {outcome.result}".strip() for outcome in outcomes)


def describe_mismatch(got: Tensor, expected: Tensor) -> str:
    """Describe the first element that differs; return "" if none does."""
    differing = (got != expected).flatten().nonzero()
    if len(differing) == 0:
        return ""
    first = int(differing[0])
    return (
        f"expected {expected.flatten()[first].item():g}, got {got.flatten()[first].item():g} "
        f"(element {first}, {len(differing)} of {got.numel()} differ)"
    )


def agree(world: World, *, right: bool) -> bool:
    """Return whether every rank was right, so that all ranks end with the same exit code."""
    flag = torch.tensor(int(right), device=world.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return right and bool(flag.item())


def _count(world: World) -> Tensor:
    return torch.arange(ELEMENTS, device=world.device)


def _rows(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a row for each number, all different up to 251 ** 4: four elements hold the digits to base 251."""
    count = torch.arange(ELEMENTS, device=numbers.device)
    digits = torch.div(numbers[:, None], 251 ** (count % 4), rounding_mode="floor")
    return ((count + digits) % 251).to(dtype)


# ---- collectives under the names that the installed torch has for them ----------------------------------------------


def reduce_scatter(output: Tensor, values: Tensor) -> None:
    """Sum `values` over all ranks, and store this rank's part in `output`."""
    # Renamed in torch 2.13, where the old name warns.
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    function(output, values)


def shift(world: World, output: Tensor, values: Tensor) -> None:
    """Send to the next rank and receive from the previous one; all ranks do so at once, so no order is needed."""
    size = world.world_size
    transfers = [
        dist.P2POp(dist.isend, values, (world.rank + 1) % size),
        dist.P2POp(dist.irecv, output, (world.rank - 1) % size),
    ]
    for transfer in dist.batch_isend_irecv(transfers):
        transfer.wait()
