"""What is checked about a checkpoint: whether all ranks see its directory, whether it can be read, and its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from launcher.distributed import World
from launcher.trainer.checkpoints.save_folder import explain
from launcher.trainer.config import SHAPE
from launcher.trainer.options import ConfigError
from launcher.trainer.randomness import States
from launcher.trainer.rank0_work import share_from_main


def is_shared(folder: str, world: World) -> bool:
    """Return whether all ranks see the same directory: rank 0 makes a file there, the others look for it."""
    if world.world_size == 1:
        return True
    token = Path(folder) / f".shared_{uuid4().hex}"

    def leave_token() -> bytes:
        token.touch()
        return token.name.encode()

    name = share_from_main(leave_token, world).decode()
    try:
        return agree((Path(folder) / name).exists(), world)
    finally:
        if world.is_main:
            token.unlink()


def agree(fact: bool, world: World) -> bool:
    """Return on every rank whether `fact` is true on all of them."""
    everywhere = torch.tensor(int(fact), device=world.device)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
    return bool(everywhere)


def check_metadata(path: Path) -> None:
    """Check that the metadata can be read; for a truncated file torch itself would log two tracebacks."""
    from launcher.trainer.checkpoints.reading import PlainReader

    try:
        PlainReader(path).read_metadata()
    except Exception as error:  # noqa: BLE001  # a truncated pickle can raise anything
        raise unreadable(path, explain(error)) from None


def unreadable(path: Path, reason: str) -> ConfigError:
    """Return the error for a broken checkpoint, with its fix."""
    return ConfigError(f"{path}: can't be read: {reason}; fix: name another one with --resume PATH")


def check_model(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ConfigError for a checkpoint of another model."""
    for name in ("kind", *SHAPE):
        if saved[name] != wanted[name]:
            raise ConfigError(f"{path}: saved with {name} {saved[name]}, but this run has {wanted[name]}")


def check_vocabulary(path: Path, saved: str, wanted: str) -> None:
    """Raise ConfigError for a checkpoint whose tokens stand for other characters, or for bytes; "" means bytes."""
    if saved != wanted:
        had, has = (f"{len(one)} characters" if one else "bytes" for one in (saved, wanted))
        other = " other" if had == has else ""
        raise ConfigError(f"{path}: its tokens are {had}, but those of this run are{other} {has}")


def read_states(path: Path) -> list[States]:
    """Read the states of the random numbers as data, of each data-parallel rank."""
    from launcher.trainer.checkpoints.reading import read_plain

    try:
        return list(read_plain(path)["states"])
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path.parent, f"{path.name}: {explain(error)}") from None
