"""Check that the ranks can talk, and that what arrives is what was sent: `python -m launcher.collectives`.

Each rank of `test-distributed` runs this under torchrun.
Every value is small enough for bf16 to hold and to add exactly, in any order: a result is right or wrong.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from launcher import distributed
from launcher.distributed import World

TIMEOUT_S = 60
ELEMENTS = 4096
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Check = Callable[[World, torch.dtype], tuple[Tensor, Tensor]]


def check_all_reduce(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sum over all ranks; return what came and what should have come.

    Each element is the sum 1 + 2 + ... of at most eight ranks, other ones from element to element.
    """
    turns = (_count(world) + world.rank) % world.world_size + 1
    parts = min(world.world_size, 8)
    values = torch.where(turns <= parts, turns, 0).to(dtype)
    dist.all_reduce(values)
    return values, torch.full_like(values, parts * (parts + 1) / 2)


def check_broadcast(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Send from the last rank, which no other part of a run does."""
    source = world.world_size - 1
    sent = (_count(world) % 251 + 1).to(dtype)
    values = sent.clone() if world.rank == source else torch.zeros_like(sent)
    dist.broadcast(values, src=source)
    return values, sent


def check_all_gather(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Bring a different row from each rank to all; the rows arrive in the order of the ranks."""
    expected = torch.stack([(_count(world) + rank) % 251 for rank in range(world.world_size)]).to(dtype)
    rows = [torch.zeros_like(expected[0]) for _ in range(world.world_size)]
    dist.all_gather(rows, expected[world.rank])
    return torch.stack(rows), expected


CHECKS: dict[str, Check] = {
    "all_reduce": check_all_reduce,
    "broadcast": check_broadcast,
    "all_gather": check_all_gather,
}


def run_checks(world: World, checks: dict[str, Check] = CHECKS) -> bool:
    """Run each check in each dtype, print the results, and be true on every rank if all ranks were right."""
    wrong = 0
    for name, check in checks.items():
        for label, dtype in DTYPES.items():
            got, expected = check(world, dtype)
            mismatch = describe_mismatch(got, expected)
            if mismatch:
                print(f"rank {world.rank}: {name} {label} wrong: {mismatch}", flush=True)
            right = agree(world, right=not mismatch)
            wrong += not right
            if right and world.is_main:
                print(f"{name} {label} ok", flush=True)
    if world.is_main:
        total = len(checks) * len(DTYPES)
        result = f"{wrong} of {total} checks failed" if wrong else f"all {total} checks passed"
        ranks = f"{world.world_size} rank{'s' if world.world_size > 1 else ''}"
        print(f"{result} on {ranks} ({world.backend}, {world.device.type})", flush=True)
    return not wrong


def describe_mismatch(got: Tensor, expected: Tensor) -> str:
    """Name the first element that differs; "" if none does."""
    differing = (got != expected).flatten().nonzero()
    if len(differing) == 0:
        return ""
    first = int(differing[0])
    return (
        f"expected {expected.flatten()[first].item():g}, got {got.flatten()[first].item():g} "
        f"(element {first}, {len(differing)} of {got.numel()} differ)"
    )


def agree(world: World, *, right: bool) -> bool:
    """Be true if every rank was right, so that all of them end with the same exit code."""
    flag = torch.tensor(int(right), device=world.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return right and bool(flag.item())


def main() -> int:
    """Join, meet at a barrier, check; return 0, 1 for a wrong result, 2 for a wrong environment or device."""
    try:
        world = distributed.init(timeout_s=TIMEOUT_S)
        distributed.barrier()
        return 0 if run_checks(world) else 1
    except (distributed.WorldError, distributed.DeviceError) as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001  # whatever it is, its traceback and exit code 1 must come out
        traceback.print_exc()
        distributed.leave(1)
    finally:
        distributed.shutdown()


def _count(world: World) -> Tensor:
    return torch.arange(ELEMENTS, device=world.device)


if __name__ == "__main__":
    sys.exit(main())
