"""Random numbers: which ranks draw the same ones, and the generators' states in a checkpoint.

The ranks of a tensor-parallel group draw the same numbers, and each of them uses its part of what they draw for the
whole sequence; so a group drops the same values as a single rank would. Other groups draw other numbers.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Dict  # noqa: UP035

import torch
import torch.distributed as dist

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.rank_table import RankTable

RANDOM = "random.pt"
PYTHON_VERSION = 3  # of the state of Python's generator; unchanged since Python 3.2
STEP_SEEDS = 1_000_003  # more than there are data-parallel ranks, each of which has a seed of its own

States = Dict[str, Any]  # noqa: UP006  # evaluated, on Python 3.8 too


def seed_ranks(seed: int, step: int, table: RankTable) -> None:
    """Seed all generators for a run that begins, or resumes without states, after this step."""
    distributed.seed_everything(seed + step * STEP_SEEDS, table.data_rank)


def capture_states(device: torch.device) -> States:
    """Return the states of this rank's generators as tensors and plain values."""
    _, words, spare = random.getstate()
    states: States = {"python": torch.tensor(words), "python_spare": spare, "torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if "numpy" in sys.modules:  # if nothing has imported it, nothing draws from it
        _, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"], states["numpy_rest"] = torch.tensor(keys.tolist()), rest
    return states


def restore_states(states: States, device: torch.device) -> None:
    """Set the generators that were captured and exist here; raise an error of any kind for states that aren't any."""
    random.setstate((PYTHON_VERSION, tuple(states["python"].tolist()), states["python_spare"]))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in sys.modules and "numpy" in states:
        sys.modules["numpy"].random.set_state(("MT19937", states["numpy"].tolist(), *states["numpy_rest"]))


def gather_states(table: RankTable, world: World, group: dist.ProcessGroup | Any) -> list[States]:
    """Return on rank 0 the states of each data-parallel rank, in order; the other ranks get an empty list.

    Every rank must call this. group: of all ranks, on the CPU.
    """
    own = table.data_rank, capture_states(world.device)
    gathered: list[Any] | None = [None] * world.world_size if world.is_main else None
    dist.gather_object(own, gathered, dst=0, group=group)
    by_rank = dict(gathered or [])  # the ranks of a tensor-parallel group have the same states
    return [by_rank[rank] for rank in sorted(by_rank)]


def scatter_states(
    saved: list[States], table: RankTable, world: World, group: dist.ProcessGroup | Any
) -> tuple[States | None, int]:
    """Return on each rank the states that rank 0 read for it, and how many it read; None if the numbers differ.

    Every rank must call this. group: of all ranks, on the CPU.
    """
    fits = len(saved) == table.data_size
    dealt = [(saved[rank // table.tensor_size] if fits else None, len(saved)) for rank in range(world.world_size)]
    own: list[Any] = [None]
    dist.scatter_object_list(own, dealt if world.is_main else None, src=0, group=group)
    states, number = own[0]
    return states, number
