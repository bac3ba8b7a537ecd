"""The table of ranks: which ranks share a model's matrices, which share its parameters, and what data each one gets.

Each row of the table gets its own share of the data (`data_rank`), and the ranks of a row share each matrix product.
DDP and FSDP have rows of one rank; tensor parallelism alone has a single row. Rows that follow each other share
the parameters of one replica of the model (FSDP); with hybrid sharding (HSDP) there are several replicas.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from launcher import distributed
from launcher.distributed import World, WorldError
from launcher.trainer.config import TrainConfig
from launcher.trainer.options import ConfigError

FSDP_KINDS, TENSOR_KINDS = ("fsdp", "fsdp+tp"), ("tp", "fsdp+tp")
SHARDED_KINDS = ("tp", *FSDP_KINDS)
SIZES_SHOWN, LEAST_TRIED = 5, 8


@dataclass(frozen=True)
class RankTable:
    """The position of this rank in the table of ranks, and how much data goes through each row.

    replicas: how many copies of the model its shards make up; 1 unless `--hsdp` asks for more.
    """

    kind: str
    data_size: int
    data_rank: int
    tensor_size: int
    batch_size: int
    accumulate: int
    replicas: int = 1

    @property
    def sharded(self) -> bool:
        """Return whether no rank has the whole model."""
        return self.kind in SHARDED_KINDS

    @property
    def global_batch(self) -> int:
        """Return the number of samples per step of all ranks together."""
        return self.batch_size * self.data_size * self.accumulate

    def describe_kind(self) -> str:
        """Return the kind of parallelism in words; "" for a single process without any."""
        kind = "" if self.kind == "none" else self.kind
        return f"{kind} in {self.replicas} replicas" if self.replicas > 1 else kind

    def describe_batch(self) -> str:
        """Return the factors of the global batch in words."""
        rows = "ranks" if self.tensor_size == 1 else f"groups of {self.tensor_size} ranks"
        factors = [f"{self.data_size} {rows}"] if self.data_size > 1 else []
        factors.append(f"batch size {self.batch_size}")
        return " x ".join(factors + ([f"{self.accumulate} passes"] if self.accumulate > 1 else []))


def plan_ranks(config: TrainConfig, world: World) -> RankTable:
    """Return the table of ranks for the config, or raise `ConfigError` with the numbers of ranks that would work."""
    try:
        return deal_ranks(config, world)
    except ConfigError as error:
        numbers = list_world_sizes(config, world)
        remedies = [f"start {numbers}"] if numbers else list_tensor_sizes(config, world)
        joint = ", or " if "; fix: " in str(error) else "; fix: "
        raise ConfigError(f"{error}{joint}{', or '.join(remedies)}" if remedies else str(error)) from None


def list_world_sizes(config: TrainConfig, world: World) -> str:
    """Return the numbers of ranks near this one that would work: `2, 4 or 8 ranks`; "" if there are none."""
    sizes = []
    for size in range(1, max(2 * world.world_size, LEAST_TRIED) + 1):
        with suppress(ConfigError):
            deal_ranks(config, replace(world, rank=0, world_size=size))
            sizes.append(size)
    nearest = sorted(sizes, key=lambda size: abs(size - world.world_size))[:SIZES_SHOWN]
    *others, last = map(str, sorted(nearest)) if nearest else ("",)
    words = f"{', '.join(others)} or {last}" if others else last
    return f"{words} rank{'' if words == '1' else 's'}" if words else ""


def list_tensor_sizes(config: TrainConfig, world: World) -> list[str]:
    """Return what would work if no number of ranks does: another --tensor-parallel, or a model that this one splits."""
    remedies, asked = [], config.tensor_parallel or world.world_size
    for size in sorted(range(2, max(2 * asked, LEAST_TRIED) + 1), key=lambda size: abs(size - asked)):
        if numbers := list_world_sizes(replace(config, tensor_parallel=size), world):
            remedies.append(f"pass --tensor-parallel {size} and start {numbers}")
            break
    heads, context = (-(-number // asked) * asked for number in (config.heads, config.context))
    dim = -(-config.dim // heads) * heads
    with suppress(ConfigError):
        deal_ranks(replace(config, heads=heads, dim=dim, context=context), world)
        remedies.append(f"pass --heads {heads} --dim {dim} --context {context}")
    return remedies


def deal_ranks(config: TrainConfig, world: World) -> RankTable:
    """Return the table of ranks for the config; raise ConfigError if the number of ranks doesn't fit."""
    kind = choose_kind(config, world.world_size)
    tensor_size = choose_tensor_size(config, kind, world.world_size)
    data_size = world.world_size // tensor_size
    replicas = choose_replicas(config, kind, world.world_size, tensor_size)
    return RankTable(
        kind=kind,
        data_size=data_size,
        data_rank=world.rank // tensor_size,
        tensor_size=tensor_size,
        batch_size=choose_batch_size(config, data_size),
        accumulate=config.accumulate,
        replicas=replicas,
    )


def choose_kind(config: TrainConfig, world_size: int) -> str:
    """Resolve `auto`; a single process gets no parallelism unless fsdp or tp is requested."""
    if config.parallel == "ddp" and world_size == 1:
        return "none"
    if config.parallel != "auto":
        return config.parallel
    if config.tensor_parallel > 1:
        return "tp" if config.tensor_parallel == world_size and not config.hsdp else "fsdp+tp"
    if config.hsdp:
        return "fsdp"
    return "ddp" if world_size > 1 else "none"


def choose_tensor_size(config: TrainConfig, kind: str, world_size: int) -> int:
    """Return how many ranks share each matrix product; the world size, heads and context must be multiples of it."""
    asked = config.tensor_parallel
    if kind not in TENSOR_KINDS:
        if asked > 1:
            raise ConfigError(
                f"parallel {kind} has no tensor parallelism, got tensor_parallel {asked}; fix: use fsdp+tp"
            )
        return 1
    if kind == "fsdp+tp" and not asked:
        raise ConfigError("parallel fsdp+tp needs --tensor-parallel N, the ranks that share each matrix product")
    size = asked or world_size
    if kind == "tp" and size != world_size:
        raise ConfigError(f"parallel tp uses all {world_size} ranks, got tensor_parallel {size}; fix: use fsdp+tp")
    if world_size % size:
        raise ConfigError(f"the number of ranks must be a multiple of tensor_parallel, got {world_size} and {size}")
    if config.kind == "regression":
        raise ConfigError(
            f"parallel {kind} splits the heads of a text model, but the regression has none; fix: use fsdp"
        )
    for name in ("heads", "context"):
        if getattr(config, name) % size:
            raise ConfigError(f"{name} must be a multiple of tensor_parallel, got {getattr(config, name)} and {size}")
    return size


def choose_replicas(config: TrainConfig, kind: str, world_size: int, tensor_size: int) -> int:
    """Return how many replicas of the model there are shards of; each replica must get equally many ranks."""
    if not config.hsdp:
        return 1
    if kind not in FSDP_KINDS:
        raise ConfigError(f"parallel {kind} has no shards to replicate, got hsdp {config.hsdp}; fix: use fsdp")
    if world_size % (config.hsdp * tensor_size):
        factors = f"hsdp x tensor_parallel, got {world_size} and {config.hsdp} x {tensor_size}"
        factors = factors if tensor_size > 1 else f"hsdp, got {world_size} and {config.hsdp}"
        raise ConfigError(f"the number of ranks must be a multiple of {factors}")
    return config.hsdp


def choose_batch_size(config: TrainConfig, data_size: int) -> int:
    """Return the number of samples in one pass through one row of the table."""
    if not config.global_batch:
        return config.batch_size
    try:
        share = distributed.batch_per_rank(config.global_batch, data_size)
    except WorldError as error:  # the same on every rank, so one of them reports it
        raise ConfigError(str(error)) from None
    if share % config.accumulate:
        raise ConfigError(f"{share} samples per rank can't be split into {config.accumulate} equal passes (accumulate)")
    return share // config.accumulate
