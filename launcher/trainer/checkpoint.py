"""Save checkpoints, and resume from them on any number of ranks and with any parallelism.

Rank 0 alone saves a replicated model. All ranks save a sharded one if they share the directory; if they don't,
rank 0 gathers and saves it, because a few machines often have no shared file system.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from launcher.distributed import World
from launcher.trainer.config import AUTO, NONE, SHAPE, TrainConfig
from launcher.trainer.main_rank import share_from_main
from launcher.trainer.optimization import Learner
from launcher.trainer.options import ConfigError
from launcher.trainer.save_folder import (
    PROGRESS,
    SaveError,
    explain,
    find_newest,
    prune,
    put_in_place,
    save_file,
)


@dataclass(frozen=True)
class Position:
    """The progress of a run: steps done, current epoch, and samples of that epoch that all ranks have seen."""

    step: int = 0
    epoch: int = 1
    samples: int = 0


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, config: TrainConfig, world: World, learner: Learner) -> None:
        self._config = config
        self._world = world
        self._learner = learner
        self._folder = Path(config.save_dir) / "checkpoints"
        self._sharded = learner.replica.layout.sharded
        self._shared = self._sharded and is_shared(config.save_dir, world)
        # Rank 0 must be able to save after the others are gone, so it has a group of its own.
        self._alone = dist.new_group([0], backend="gloo") if world.world_size > 1 else None
        self._saved: Position | None = None
        self._resumed = ""

    def save(self, position: Position) -> Path:
        """Save a checkpoint; every rank must call this, and rank 0 has written it when this returns."""
        path = self._folder / f"step_{position.step}"
        if position != self._saved:
            if self._sharded or self._world.is_main:
                self._write(path, position)
            self._saved = position
        return path

    def save_alone(self, position: Position) -> Path | None:
        """Save on rank 0 without the other ranks, which may be gone; return None if they hold parts of the model."""
        return None if self._sharded else self.save(position)

    def newest(self) -> Path | None:
        """Return the complete checkpoint that was saved last, or None."""
        return find_newest(self._folder)

    def _write(self, path: Path, position: Position) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        state = self._state(full=self._sharded and not self._shared)
        if not (self._shared or self._world.is_main):
            return
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            if self._world.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True, exist_ok=True)  # another rank may have made it already
                (temporary / PROGRESS).write_text(json.dumps(self._describe(position), indent=1))
            # It returns on rank 0 when every rank has written, and synced, its part.
            group = None if self._shared else self._alone
            save(state, storage_writer=FileSystemWriter(temporary), process_group=group)
            if self._world.is_main:
                put_in_place(temporary, path)
                prune(self._folder, self._config.keep)
        except (OSError, CheckpointException) as error:  # the latter isn't an Exception: no caller would catch it
            raise SaveError(path, error) from error

    def _state(self, *, full: bool) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=full, cpu_offload=full)
        model, optimizer = get_state_dict(self._learner.replica.model, self._learner.optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def _describe(self, position: Position) -> dict[str, Any]:
        return {
            **asdict(position),
            "saved_at": time.time(),
            "scaler": self._learner.scaler.state_dict(),
            "ranks": self._world.world_size,
            "parallel": self._learner.replica.layout.kind,
            "torch": torch.__version__,
            "kind": self._config.kind,
            "config": asdict(self._config),
        }

    def resume(self) -> Position:
        """Resume from the checkpoint that `--resume` selects, and return its position; without one, the start."""
        found = share_from_main(self._find, self._world)
        if not found:
            return Position()
        name, progress = found.split(b"\n", 1)
        path, said = Path(name.decode()), json.loads(progress)
        check_model(path, {"kind": said["kind"], **said["config"]}, {"kind": self._config.kind, **asdict(self._config)})
        self._load(path, shared=self._all_see(path / PROGRESS, progress))
        if said["scaler"]:  # the run that saved it may have had none
            self._learner.scaler.load_state_dict(said["scaler"])
        self._resumed = name.decode()
        self._saved = Position(said["step"], said["epoch"], said["samples"])
        return self._saved

    def describe_resume(self, position: Position) -> str:
        """Return the start report's line about resuming; "" if the run was to start from scratch."""
        if self._config.resume == NONE:
            return ""
        going_on = f"{self._resumed}, step {position.step} of epoch {position.epoch}"
        return f"\nresume  {going_on if self._resumed else 'nothing to resume, starting from scratch'}"

    def _find(self) -> bytes:
        """Return the checkpoint's path and progress, on rank 0; empty if the run starts from scratch."""
        if self._config.resume == NONE:
            return b""
        if self._config.resume == AUTO:
            path = self.newest()
            if path is None:
                return b""
        else:
            path = Path(self._config.resume)
        check_metadata(path)
        return str(path).encode() + b"\n" + (path / PROGRESS).read_bytes()

    def _all_see(self, file: Path, content: bytes) -> bool:
        """Return, alike on every rank, whether all of them can read this same file."""
        try:
            seen = file.read_bytes() == content
        except OSError:
            seen = False
        return agree(seen, self._world)

    def _load(self, path: Path, *, shared: bool) -> None:
        """Load the checkpoint: each rank reads its part, or rank 0 reads all of it for the others."""
        from torch.distributed.checkpoint import state_dict

        state = self._state(full=not shared)
        self._read(path, state, shared=shared)
        model, optimizer = self._learner.replica.model, self._learner.optimizer
        # The optimizer's options of this run apply, not those saved in the checkpoint.
        rules = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        options = state_dict.StateDictOptions(full_state_dict=not shared, broadcast_from_rank0=not shared)
        # One by one: on ranks that read nothing, set_state_dict takes the empty model for a missing one (torch 2.13).
        state_dict.set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        state_dict.set_model_state_dict(model, state["model"], options=options)
        for rules_now, rule in zip(optimizer.param_groups, rules):  # noqa: B905  # Python 3.9 has no `strict`
            rules_now.update(rule)

    def _read(self, path: Path, state: dict[str, Any], *, shared: bool) -> None:
        """Fill `state`; if one rank can't read, all of them fail, so that none is left waiting for it."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        from launcher.trainer.checkpoint_reading import PlainPlanner, PlainReader

        reason = ""
        if shared or self._world.is_main:
            try:
                group = None if shared else self._alone
                load(state, storage_reader=PlainReader(path), planner=PlainPlanner(), process_group=group)
            except CheckpointException as error:  # not an Exception: no caller would catch it
                reason = explain(error)
        if not agree(not reason, self._world):
            raise unreadable(path, reason)

    def export(self) -> Path:
        """Write `model.pt`: all weights under their plain names, and the config; every rank must call this."""
        path = Path(self._config.save_dir) / "model.pt"
        model = self._learner.replica.model
        if self._sharded:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            weights = get_model_state_dict(model, options=options)
        else:
            weights = model.state_dict()
        if self._world.is_main:
            try:
                save_file(path, {"model": weights, "config": asdict(self._config)})
            except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a full disk
                raise SaveError(path, error) from error
        return path


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
    from launcher.trainer.checkpoint_reading import PlainReader

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
