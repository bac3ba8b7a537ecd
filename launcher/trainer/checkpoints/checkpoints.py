"""Save checkpoints, and resume from them on any number of ranks and with any parallelism.

Rank 0 alone saves a replicated model. All ranks save a sharded one if they share the directory; if they don't,
rank 0 gathers and saves it, because a few machines often have no shared file system.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher.distributed import World
from launcher.trainer.checkpoints.checks import (
    agree,
    check_metadata,
    check_model,
    check_vocabulary,
    is_shared,
    read_states,
    unreadable,
)
from launcher.trainer.checkpoints.replacement import make_durable, put_in_place, write_durable
from launcher.trainer.checkpoints.save_folder import (
    PROGRESS,
    SaveError,
    explain,
    find_newest,
    prune,
    read_progress,
    save_file,
)
from launcher.trainer.config import AUTO, NONE, TrainConfig
from launcher.trainer.optimization import Learner
from launcher.trainer.randomness import (
    RANDOM,
    States,
    capture_states,
    gather_states,
    restore_states,
    scatter_states,
    seed_ranks,
)
from launcher.trainer.rank0_work import MainRankError, share_from_main

if TYPE_CHECKING:
    from launcher.trainer.checkpoints.writing import SaveInFlight


@dataclass(frozen=True)
class Position:
    """The progress of a run: steps done, current epoch, and samples of that epoch that all ranks have seen."""

    step: int = 0
    epoch: int = 1
    samples: int = 0


class Checkpoints:
    """The checkpoints of one run.

    With --async-save at most one of them is in flight: written by a thread while the training continues. It is not a
    checkpoint before it is whole; `save`, `finish` and `export` wait for it, and raise SaveError if it failed.
    group: of all ranks, on the CPU, from `make_cpu_group`. vocabulary: as in the Task.
    """

    def __init__(self, config: TrainConfig, world: World, learner: Learner, group: Any, vocabulary: str = "") -> None:
        self._config = config
        self._world = world
        self._learner = learner
        self._folder = Path(config.save_dir) / "checkpoints"
        self._table = learner.replica.table
        self._sharded = self._table.sharded
        self._vocabulary = vocabulary
        self._shared = self._sharded and not config.evaluate_only and is_shared(config.save_dir, world)
        self._group = group
        # Rank 0 must be able to save after the others are gone, so it has a group of its own. The others don't help to
        # make it: torch would let them wait in ncclCommSplit for rank 0 (_new_process_group_helper in torch 2.13).
        self._alone = dist.new_group([0], backend="gloo", use_local_synchronization=True)
        self._saved: Position | None = None
        self._begun = False  # a save in flight that `finish` has not waited for yet; the same on every rank
        self._in_flight: SaveInFlight | None = None
        self._resumed = ""
        self._new_numbers = ""  # why the random numbers don't continue where they were

    def save(self, position: Position, validation_loss: float | None = None) -> Path:
        """Save a checkpoint; every rank must call this. When it returns, rank 0 has written it or put it in flight.

        validation_loss: of the weights as they are now, if it is known.
        """
        path = self._path_of(position)
        if position != self._saved:
            self.finish()
            self._write(path, position, validation_loss)
            self._saved = position
        return path

    def save_alone(self, position: Position) -> Path | None:
        """Save on rank 0 without the other ranks, which may be gone; return None if they hold parts of the model."""
        self._wait()
        if self._sharded:
            return None
        path = self._path_of(position)
        if position != self._saved:
            with told_as_save_error(path):
                self._prepare(path, position, [capture_states(self._world.device)])
                self._write_and_complete(self._state(full=False), path)
        return path

    def finish(self) -> None:
        """Wait on every rank for the save in flight; every rank must call this."""
        if self._begun and self._saved is not None:
            self._begun = False
            with told_as_save_error(self._path_of(self._saved)):
                share_from_main(self._wait, self._world)
            self.settle()

    def settle(self) -> None:
        """Wait on this rank alone for the save in flight, however it ends."""
        with suppress(SaveError):
            self._wait()

    def newest(self) -> Path | None:
        """Return the complete checkpoint that was saved last, or None."""
        return find_newest(self._folder)

    def _path_of(self, position: Position) -> Path:
        return self._folder / f"step_{position.step}"

    def _wait(self) -> None:
        saving, self._in_flight = self._in_flight, None
        if saving is not None:
            try:
                saving.wait()
            except BaseException:
                self._saved = None  # so that rank 0 tries again if it stops without the others
                raise

    def _write(self, path: Path, position: Position, validation_loss: float | None) -> None:
        """Write a checkpoint with all ranks, or put it in flight. The others wait for rank 0 as long as it takes."""
        from launcher.trainer.checkpoints.writing import write_files

        states = gather_states(self._table, self._world, self._group)
        writes = self._shared or self._world.is_main
        state = self._state(full=self._sharded and not self._shared) if self._sharded or writes else {}
        with told_as_save_error(path):
            share_from_main(partial(self._prepare, path, position, states, validation_loss), self._world)
            if self._config.async_save:
                self._begun = True
                self._in_flight = self._put_in_flight(state, path) if writes else None
            elif self._shared:
                write_files(state, temporary_name(path), self._group)
                share_from_main(partial(self._complete, path), self._world)
            else:
                share_from_main(partial(self._write_and_complete, state, path), self._world)

    def _put_in_flight(self, state: dict[str, Any], path: Path) -> SaveInFlight:
        from launcher.trainer.checkpoints.writing import SaveInFlight

        complete = partial(self._complete, path) if self._world.is_main else lambda: None
        group = self._group if self._shared else self._alone
        return SaveInFlight(state, temporary_name(path), group, path, complete)

    def _prepare(
        self, path: Path, position: Position, states: list[States], validation_loss: float | None = None
    ) -> None:
        """Make the temporary directory on rank 0, with the position and the states of the random numbers."""
        temporary = temporary_name(path)
        shutil.rmtree(temporary, ignore_errors=True)
        make_durable(self._folder)
        temporary.mkdir(exist_ok=True)
        progress = {**self._describe(position), "validation_loss": validation_loss}
        write_durable(temporary / PROGRESS, json.dumps(progress, indent=1).encode())
        save_file(temporary / RANDOM, {"states": states})

    def _write_and_complete(self, state: dict[str, Any], path: Path) -> None:
        """Write a checkpoint on rank 0 without the other ranks."""
        from launcher.trainer.checkpoints.writing import write_files

        write_files(state, temporary_name(path), self._alone)
        self._complete(path)

    def _complete(self, path: Path) -> None:
        """Put the checkpoint in its place on rank 0; all ranks have written and flushed their files."""
        put_in_place(temporary_name(path), path)
        prune(self._folder, self._config.keep)

    def _state(self, *, full: bool) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=full, cpu_offload=full)
        model, optimizer = get_state_dict(self._learner.replica.model, self._learner.optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def _describe(self, position: Position) -> dict[str, Any]:
        return {
            **asdict(position),
            "saved_at": self._now(),
            "scaler": self._learner.scaler.state_dict(),
            "ranks": self._world.world_size,
            "parallel": self._learner.replica.table.kind,
            "torch": torch.__version__,
            "kind": self._config.kind,
            "vocabulary": self._vocabulary,
            "config": asdict(self._config),
        }

    def _now(self) -> float:
        """Return the time, or one after the newest checkpoint's if this clock is behind: they are ordered by time."""
        newest = self.newest()
        progress = read_progress(newest) if newest is not None else None
        return max(time.time(), progress["saved_at"] + 0.001 if progress is not None else 0.0)

    def resume(self) -> Position:
        """Resume from the checkpoint that `--resume` selects, and return its position; without one, the start."""
        found = share_from_main(self._find, self._world)
        if not found:
            return Position()
        name, progress = found.split(b"\n", 1)
        path, said = Path(name.decode()), json.loads(progress)
        check_model(path, {"kind": said["kind"], **said["config"]}, {"kind": self._config.kind, **asdict(self._config)})
        check_vocabulary(path, str(said.get("vocabulary", "")), self._vocabulary)
        self._load(path, shared=self._all_see(path / PROGRESS, progress))
        self._resume_random_numbers(path, said["step"])
        if said["scaler"]:  # the run that saved it may have had none
            self._learner.scaler.load_state_dict(said["scaler"])
        self._resumed = name.decode()
        self._saved = Position(said["step"], said["epoch"], said["samples"])
        return self._saved

    def describe_resume(self, position: Position) -> str:
        """Return the start report's line about resuming; "" if the run was to start from scratch."""
        if self._config.resume == NONE:
            return ""
        going_on = f"{self._resumed}, step {position.step} of epoch {position.epoch}{self._new_numbers}"
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
        # The optimizer's options of this run apply, and its groups of parameters; those in the checkpoint aren't read.
        groups = state["optimizer"].pop("param_groups", None)  # a rank without the state has none
        self._read(path, state, shared=shared)
        if groups is not None:
            state["optimizer"]["param_groups"] = groups
        model, optimizer = self._learner.replica.model, self._learner.optimizer
        options = state_dict.StateDictOptions(full_state_dict=not shared, broadcast_from_rank0=not shared)
        # One by one: on ranks that read nothing, set_state_dict takes the empty model for a missing one (torch 2.13).
        state_dict.set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        state_dict.set_model_state_dict(model, state["model"], options=options)

    def _read(self, path: Path, state: dict[str, Any], *, shared: bool) -> None:
        """Fill `state`; if one rank can't read, all of them fail, so that none is left waiting for it."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        from launcher.trainer.checkpoints.reading import PlainPlanner, PlainReader

        def read() -> None:
            group = self._group if shared else self._alone
            try:
                load(state, storage_reader=PlainReader(path), planner=PlainPlanner(), process_group=group)
            except CheckpointException as error:  # not an Exception: no caller would catch it
                raise unreadable(path, explain(error)) from None

        if shared:
            read()  # an error of one rank is raised on all of them
        else:
            share_from_main(read, self._world)

    def _resume_random_numbers(self, path: Path, step: int) -> None:
        """Continue each data-parallel rank's random numbers; begin new ones if there were more or fewer such ranks."""
        seed_ranks(self._config.seed, step, self._table)
        saved: list[States] = []

        def read() -> None:
            if (path / RANDOM).exists():
                saved.extend(read_states(path / RANDOM))

        share_from_main(read, self._world)
        states, ranks = scatter_states(saved, self._table, self._world, self._group)
        if states is not None:
            try:
                restore_states(states, self._world.device)
            except Exception as error:  # noqa: BLE001  # what a broken file holds can raise anything
                raise unreadable(path, f"{RANDOM}: {explain(error)}") from None
        if states is None and self._config.dropout:
            known = f"saved by {ranks} data-parallel ranks" if ranks else "it has no states of them"
            self._new_numbers = f"; new random numbers: {known}, this run has {self._table.data_size}"

    def export(self) -> Path:
        """Write `model.pt`: all weights under their plain names, and the config; every rank must call this."""
        self.finish()
        path = Path(self._config.save_dir) / "model.pt"
        weights = self._weights()

        def write() -> None:
            try:
                save_file(path, {"model": weights, "config": asdict(self._config), "vocabulary": self._vocabulary})
            except OSError as error:
                raise SaveError(path, error) from error

        share_from_main(write, self._world)
        return path

    def _weights(self) -> dict[str, Any]:
        """Return all weights on rank 0, on the CPU under their plain names; every rank must call this."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(self._learner.replica.model, options=options)


@contextmanager
def told_as_save_error(path: Path) -> Iterator[None]:
    """Raise SaveError for what can go wrong while a checkpoint is written, here or on rank 0."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (OSError, CheckpointException, MainRankError) as error:  # CheckpointException isn't an Exception
        raise SaveError(path, error) from error


def temporary_name(path: Path) -> Path:
    """Return where a checkpoint is written before it gets its place."""
    return path.with_name(f".{path.name}.tmp")
