"""The start report: where the ranks run, how they split the work, and on which devices."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Task, short
from launcher.trainer.options import ConfigError
from launcher.trainer.rank_table import RankTable

NAMES_SHOWN = 8
RANKS_SHOWN = 16


@dataclass(frozen=True)
class Node:
    """One node of the run, and the number of its ranks."""

    host: str
    ranks: int


def gather_nodes(world: World) -> list[Node]:
    """Ask every rank where it runs; return the same list on all of them, in rank order."""
    places: list[tuple[int, str]] = [(0, "")] * world.world_size
    dist.all_gather_object(places, (world.node_rank, world.host))
    ranks: dict[tuple[int, str], int] = {}
    for place in places:
        ranks[place] = ranks.get(place, 0) + 1
    return [Node(host, count) for (_, host), count in ranks.items()]


def check_nodes(nodes: Sequence[Node], config: TrainConfig) -> None:
    """Raise ConfigError if the ranks don't match `--nodes` and `--gpus-per-node`."""
    names = list_names([node.host for node in nodes])
    if config.nodes and config.nodes != len(nodes):
        raise ConfigError(f"--nodes {config.nodes}, but the ranks are on {count(len(nodes), 'node')}: {names}")
    for node in nodes:
        if config.gpus_per_node and config.gpus_per_node != node.ranks:
            raise ConfigError(
                f"--gpus-per-node {config.gpus_per_node}, but {node.host} has {count(node.ranks, 'rank')}: "
                "there is one rank per GPU"
            )


def describe_start(world: World, nodes: Sequence[Node], table: RankTable, task: Task, model: nn.Module) -> str:
    """Return the start report: a few aligned lines."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    per_node = {node.ranks for node in nodes}
    each = f", {per_node.pop()} per node" if len(nodes) > 1 and len(per_node) == 1 else ""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else world.device.type
    kind = table.describe_kind()
    lines = {
        "job": world.job_id or "",
        "nodes": f"{len(nodes)}: {list_names([node.host for node in nodes])}" if len(nodes) > 1 else nodes[0].host,
        "ranks": f"{world.world_size}{each}, from {world.launched_by}",
        "device": f"{device}, {world.backend}",
        "batch": f"{kind}{', ' if kind else ''}{table.global_batch} samples per step ({table.describe_batch()})",
        "data": f"{task.source}, {short(task.train_size)} samples, {short(task.validation_size)} to validate",
        "model": f"{short(parameters)} parameters",
    }
    if any(node.ranks % table.tensor_size for node in nodes):
        size = table.tensor_size
        lines["warning"] = f"some groups of {size} ranks span two nodes, so each matrix product waits for the network"
    return "\n".join(f"{name:<8}{said}" for name, said in lines.items() if said)


def describe_ranks(config: TrainConfig, world: World, shard: tuple[int, int] | None = None) -> str:
    """Return a line per rank with where it runs, if --report-ranks asks for it; every rank must call this.

    shard: how many parameters this rank has, and the model; None if it has them all.
    """
    if config.report_ranks == "off" or (config.report_ranks == "auto" and world.world_size > RANKS_SHOWN):
        return ""
    shards = [shard] * world.world_size
    if shard is not None and world.world_size > 1:
        dist.all_gather_object(shards, shard)
    parts = (f", {short(one[0])} of {short(one[1])} parameters" if one else "" for one in shards)
    return "".join(f"\n{line}{part}" for line, part in zip(distributed.gather_ranks(world), parts))  # noqa: B905


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that this rank has had so far: torch's on a GPU, or else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe_peak_memory(world: World) -> str:
    """Return the most memory that a rank has had; every rank must call this."""
    peaks = [peak_memory_bytes(world.device)] * world.world_size
    dist.all_gather_object(peaks, peaks[world.rank])
    most, kind, of = max(peaks), "memory", ""
    if world.device.type == "cuda":
        kind, of = "GPU memory", f" of {gigabytes(torch.cuda.get_device_properties(world.device).total_memory)}"
    where = f" on rank {peaks.index(most)} (the highest)" if world.world_size > 1 else ""
    return f"peak {kind} {gigabytes(most)}{of}{where}"


def gigabytes(size_bytes: int) -> str:
    """Return `0.81 GB` or `12.3 GB`, of 2**30 bytes, as `launch` and nvidia-smi count them."""
    return f"{size_bytes / 2**30:.3g} GB"


def list_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
