"""Checkpoints: where a run saves, what a checkpoint holds, and how a run continues from one on any number of ranks.

    SAVE_DIR/checkpoints/step_120/progress.json    the position in the run, its options and its data
    SAVE_DIR/checkpoints/step_120/random.pt        the states of the random number generators, of each share of the data
    SAVE_DIR/checkpoints/step_120/state.pt         weights and optimizer, whole, written by rank 0; or, of a sharded
    SAVE_DIR/checkpoints/step_120/*.distcp         model on a shared file system, each rank's part of them
    SAVE_DIR/model.pt                              the weights alone, at the end, for torch.load
    SAVE_DIR/metrics.jsonl                         the losses and other metrics
    SAVE_DIR/.lock                                 locked while a run saves there; the id of its Slurm job

A checkpoint is written under a name that begins with a dot. When all of it is on the disk, it gets its own name, which
no other checkpoint has had: so whatever dies, and wherever the power fails, a checkpoint is whole or none.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import pickle
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch
from torch import nn

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.config import AUTO, LAST, NONE, SHAPE, ConfigError, RunError, TrainConfig
from launcher.trainer.data import Data
from launcher.trainer.parallel import ParallelDims, gather, make_cpu_group, on_main

PROGRESS, RANDOM, STATE, METADATA, LOCK = "progress.json", "random.pt", "state.pt", ".metadata", ".lock"
Result = TypeVar("Result")
SAMPLED_FROM = ("seed", "validation_fraction", "tokens", "data_size")  # what decides which samples there are


@dataclass(frozen=True)
class Position:
    """The progress of a run: steps done, current epoch, and samples of that epoch that all ranks have seen."""

    step: int = 0
    epoch: int = 1
    samples: int = 0


# ---- the directory of a run ----------------------------------------------------------------------------------------


def choose_folder(config: TrainConfig) -> tuple[str, str]:
    """Return the directory in which a run saves, and the checkpoint from which it continues, or "", on rank 0.

    A directory that isn't empty is used only by a run that is to be resumed, or by one that is started again by
    `launch`, torchrun or Slurm.
    """
    attempt = distributed.find_attempt()
    is_again = bool(attempt.restarts or attempt.requeues)
    resume = AUTO if config.resume == NONE and is_again else config.resume
    path = Path(config.save_dir or Path("outputs", attempt.name or time.strftime("%Y%m%d-%H%M%S")))
    if attempt.requeues and not config.save_dir:  # `launch` gives a requeued job another id, but Slurm doesn't
        earlier = [lock for lock in Path("outputs").glob(f"*/{LOCK}") if lock.read_text() == attempt.job_id]
        path = max(earlier, key=lambda lock: lock.stat().st_mtime, default=path / LOCK).parent
    if resume in (AUTO, LAST) and not config.save_dir and not (is_again and attempt.name):
        if config.resume != NONE:
            raise ConfigError(f"--resume {resume} needs --save-dir DIR, because each run has its own directory")
        resume = NONE  # torchrun restarts a run that has no name: nothing says which directory it had
    found = find_whole(path / "checkpoints")
    if config.evaluate_only or resume == LAST:
        if resume in (NONE, AUTO, LAST) and not found:
            fix = "pass --save-dir DIR of a run, or --resume DIR/checkpoints/step_N"
            raise ConfigError(f"{path}: no complete checkpoint to resume; fix: {fix}")
    elif resume == NONE and path.exists() and any(path.iterdir()):
        if config.save_dir:
            raise ConfigError(f"{path}: it isn't empty; fix: continue with --resume, or name another --save-dir")
        path = path.with_name(f"{path.name}-{uuid.uuid4().hex[:4]}")
    if resume in (NONE, AUTO, LAST):
        chosen = str(found[-1]) if found and (resume != NONE or config.evaluate_only) else ""
    else:
        chosen = resume
        if read_progress(Path(chosen)) is None:
            example = "a directory such as outputs/RUN/checkpoints/step_60"
            raise ConfigError(f"{chosen}: not a complete checkpoint ({example})")
    return str(path), chosen


def claim_folder(path: Path) -> TextIO:
    """Make the directory, and lock it for this run until the file is closed or the process ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / LOCK).open("a+")
    except OSError as error:
        raise ConfigError(f"{path}: can't save there: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path}: another run is saving there") from None
    except OSError:
        pass  # the file system has no locks
    file.truncate(0)
    file.write(distributed.find_attempt().job_id or "")
    file.flush()
    return file


def find_whole(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, in the order in which they were saved."""
    paths = list(folder.glob("step_*")) if folder.is_dir() else []
    found = [(progress["saved_at"], path) for path in paths if (progress := read_progress(path)) is not None]
    return [path for _, path in sorted(found)]


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return what a checkpoint says of itself; None if it isn't one, such as a copy that was cut off."""
    try:
        progress = json.loads((path / PROGRESS).read_text())
        is_whole = (path / STATE).exists() or (path / METADATA).stat().st_size > 0
        needed = {*asdict(Position()), "saved_at", "scaler", "config", "vocabulary", "identity"}
        return progress if is_whole and needed <= progress.keys() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def find_best(paths: Sequence[Path]) -> tuple[Path, float] | None:
    """Return the checkpoint with the least validation loss, and that loss; None if none was validated."""
    losses = [(progress.get("validation_loss"), path) for path in paths if (progress := read_progress(path))]
    known = [(loss, path) for loss, path in losses if isinstance(loss, float) and math.isfinite(loss)]
    if not known:
        return None
    loss, path = min(known, key=lambda one: one[0])
    return path, loss


# ---- saving and resuming -------------------------------------------------------------------------------------------


class Checkpoints:
    """Saves the state of a run, and restores it; at most one save is in flight, and `finish` waits for it.

    group: of all ranks, on the CPU. model: the one with plain names, inside of DDP.
    """

    def __init__(
        self, config: TrainConfig, dims: ParallelDims, world: World, group: Any, data: Data,
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
    ) -> None:  # fmt: skip
        self._config, self._dims, self._world, self._group, self._data = config, dims, world, group, data
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._folder = Path(config.save_dir) / "checkpoints"
        self._thread = ThreadPoolExecutor(1)
        self._in_flight: Future[None] | None = None
        self._saved: tuple[Position, Path] | None = None
        self._is_shared = dims.is_sharded and not config.evaluate_only and self._see_one_folder()
        # Of its own, since a save in flight uses it while the training uses the other one.
        self._save_group = make_cpu_group(world) if dims.is_sharded else None

    def _see_one_folder(self) -> bool:
        """Return whether all ranks see the directory of rank 0; a few machines often share none."""

        def touch() -> str:
            token = Path(self._config.save_dir) / f".shared_{uuid.uuid4().hex}"
            token.touch()
            return str(token)

        token = Path(on_main(partial(told, Path(self._config.save_dir), touch), self._group))
        is_shared = all(gather(token.exists(), self._group))
        if self._world.is_main:
            token.unlink()
        return is_shared

    def save(self, position: Position, validation_loss: float | None = None) -> Path:
        """Save a checkpoint with all ranks; with --async-save it is in flight when this returns.

        Raise RunError on every rank if it, or the save before it, can't be written.
        """
        if self._saved is not None and self._saved[0] == position:
            return self._saved[1]
        self.finish()
        own = (self._dims.dp_rank, capture_random_state(self._world.device))
        states = [state for _, state in sorted(dict(gather(own, self._group)).items())]
        state = self._state(full=not self._is_shared)
        path, temporary = on_main(partial(self._choose_names, position), self._group)
        self._saved = position, path

        def prepare() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            write(temporary / PROGRESS, json.dumps(self._describe(position, validation_loss), indent=1).encode())
            write_torch(temporary / RANDOM, {"states": states})

        if self._is_shared:
            on_main(partial(told, path, prepare), self._group)
            self._in_flight = self._save_shards(state, path, temporary)
        elif self._world.is_main:
            whole = move_to_cpu(state, copies=self._config.async_save)
            self._in_flight = self._thread.submit(self._save_whole, whole, prepare, path, temporary)
        if not self._config.async_save:
            self.finish()
        return path

    def save_alone(self, position: Position) -> Path | None:
        """Save on rank 0 without the others, which may be gone; return None where that can't be done.

        Nobody has all of a sharded model. On a GPU the last step may hold what an aborted collective left, or wait for
        one that never ends.
        """
        if self._in_flight is not None and not self._is_shared:
            told(self._folder, self._in_flight.result)
        if self._dims.is_sharded or self._world.device.type == "cuda":
            return None
        path, temporary = self._choose_names(position)

        def prepare() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            write(temporary / PROGRESS, json.dumps(self._describe(position, None), indent=1).encode())

        told(path, partial(self._save_whole, self._state(full=True), prepare, path, temporary))
        return path

    def finish(self) -> None:
        """Wait on every rank for the save in flight; raise RunError on all of them if it has failed on one."""
        if self._saved is None:
            return
        saving, self._in_flight, failure = self._in_flight, None, ""
        if saving is not None:
            try:
                told(self._saved[1], saving.result)
            except RunError as error:
                failure = str(error)
        if failures := [one for one in gather(failure, self._group) if one]:
            self._saved = None
            raise RunError(failures[0])

    def newest(self) -> Path | None:
        """Return the checkpoint of this directory that was saved last, or None."""
        whole = find_whole(self._folder)
        return whole[-1] if whole else None

    def export(self) -> Path:
        """Write model.pt: all weights on the CPU under their plain names, the options and the vocabulary."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        self.finish()
        path = Path(self._config.save_dir) / "model.pt"
        options = StateDictOptions(full_state_dict=self._dims.is_sharded, cpu_offload=self._dims.is_sharded)
        weights = get_model_state_dict(self._model, options=options)
        state = {"model": weights, "config": asdict(self._config), "vocabulary": self._data.vocabulary}

        def replace() -> None:
            write_torch(path.with_name(".model.pt"), move_to_cpu(state))
            path.with_name(".model.pt").replace(path)
            sync(path.parent)

        on_main(partial(told, path, replace), self._group)
        return path

    def _choose_names(self, position: Position) -> tuple[Path, Path]:
        """Return a name that no checkpoint has, and the one under which it is written."""
        path = self._folder / f"step_{position.step}"
        while path.exists():  # a run that resumed from an earlier checkpoint comes here again
            path = path.with_name(f"{path.name}_again")
        return path, path.with_name(f".{path.name}")

    def _save_whole(self, state: dict[str, Any], prepare: Callable[[], None], path: Path, temporary: Path) -> None:
        prepare()
        write_torch(temporary / STATE, state)
        self._complete(path, temporary)

    def _save_shards(self, state: dict[str, Any], path: Path, temporary: Path) -> Future[None]:
        """Write this rank's part, from a copy with --async-save; once all are written rank 0 completes it."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        writer, group = FileSystemWriter(temporary), self._save_group
        written: Future[Any] = Future()
        if self._config.async_save:
            saving: Any = async_save(move_to_cpu(state, copies=True), storage_writer=writer, process_group=group)
            written = getattr(saving, "upload_completion", saving)  # torch 2.9 and later may return two
        else:
            try:  # in this thread, which has this rank's GPU
                written.set_result(save(state, storage_writer=writer, process_group=group))
            except BaseException as error:  # noqa: BLE001  # CheckpointException isn't an Exception; `finish` raises it
                written.set_exception(error)

        def complete() -> None:
            written.result()
            sync(temporary)
            gather(None, self._save_group)  # all are on the disk; a barrier would use the GPU
            if self._world.is_main:
                self._complete(path, temporary)

        return self._thread.submit(complete)

    def _complete(self, path: Path, temporary: Path) -> None:
        sync(temporary)
        temporary.rename(path)
        sync(self._folder)  # before an older one is removed
        prune(self._folder, self._config.keep)

    def _state(self, *, full: bool) -> dict[str, Any]:
        """Return the weights, and AdamW's state without its options: those of this run apply on resume, too."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        gathers = full and self._dims.is_sharded
        options = StateDictOptions(full_state_dict=gathers, cpu_offload=gathers)
        model, optimizer = get_state_dict(self._model, self._optimizer, options=options)
        return {"model": model, "optimizer": optimizer.get("state", {})}

    def _describe(self, position: Position, validation_loss: float | None) -> dict[str, Any]:
        earlier = [read_progress(path) for path in find_whole(self._folder)[-1:]]
        # They are ordered by time, also if this host's clock is behind.
        saved_at = max([time.time(), *(progress["saved_at"] + 0.001 for progress in earlier if progress)])
        return {
            **asdict(position),
            "saved_at": saved_at,
            "validation_loss": validation_loss,
            "scaler": self._scaler.state_dict(),
            "config": asdict(self._config),
            "vocabulary": self._data.vocabulary,
            "identity": self._data.identity,
            "torch": torch.__version__,
        }

    def resume(self, path: Path) -> tuple[Position, list[str]]:
        """Continue from a checkpoint; return its position, and what of this run differs from the one that saved it."""
        progress = on_main(partial(check_progress, path, self._config, self._data), self._group)
        if on_main((path / STATE).exists, self._group):
            self._load_whole(path)
        elif all(gather((path / METADATA).exists(), self._group)):
            self._load_shards(path)
        else:
            raise ConfigError(f"{path}: all ranks wrote it, but not all see it here; fix: put it on a shared disk")
        states = on_main(partial(read_random_states, path), self._group)
        differences = describe_differences(progress, self._config, self._data)
        if len(states) == self._dims.dp_size:
            restore_random_state(states[self._dims.dp_rank], self._world.device)
        elif self._config.dropout:
            differences.append(f"random numbers: new ones, saved by {len(states)} ranks with data of their own")
        if progress["scaler"]:  # the run that saved it may have had none
            self._scaler.load_state_dict(progress["scaler"])
        position = Position(progress["step"], progress["epoch"], progress["samples"])
        if path.parent == self._folder:
            self._saved = position, path
        return position, differences

    def _load_whole(self, path: Path) -> None:
        """Read the state on rank 0, which sends each rank its part."""
        from torch.distributed.checkpoint import state_dict

        saved: dict[str, Any] = {"model": {}, "optimizer": {}}

        def read() -> None:
            try:
                saved.update(torch.load(path / STATE, map_location="cpu", weights_only=True))
            except Exception as error:  # noqa: BLE001  # a broken file can raise anything
                raise unreadable(path, error) from None

        on_main(read, self._group)
        options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state_dict.set_model_state_dict(self._model, saved["model"], options=options)
        known = state_dict.get_optimizer_state_dict(
            self._model, self._optimizer, options=state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if self._world.is_main:
            known["state"] = saved["optimizer"]
        state_dict.set_optimizer_state_dict(self._model, self._optimizer, known, options=options)

    def _load_shards(self, path: Path) -> None:
        """Let each rank read what it needs, however many ranks wrote it."""
        from torch.distributed.checkpoint import state_dict
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        on_main(partial(read_metadata, path), self._group)  # refuses what isn't plain, on all ranks
        state = self._state(full=False)
        try:
            load(state, storage_reader=plain_reader(path), process_group=self._save_group or self._group)
        except CheckpointException as error:  # not an Exception
            raise unreadable(path, error) from None
        state_dict.set_model_state_dict(self._model, state["model"])
        known = state_dict.get_optimizer_state_dict(self._model, self._optimizer)
        known["state"] = state["optimizer"]
        state_dict.set_optimizer_state_dict(self._model, self._optimizer, known)


# ---- what a checkpoint says of the run that saved it ------------------------------------------------------------


def check_progress(path: Path, config: TrainConfig, data: Data) -> dict[str, Any]:
    """Return what a checkpoint says; raise ConfigError if its model isn't this one."""
    progress = read_progress(path)
    if progress is None:
        raise ConfigError(f"{path}: not a complete checkpoint (a directory such as outputs/RUN/checkpoints/step_60)")
    for name in SHAPE:
        if progress["config"].get(name) != getattr(config, name):
            saved = progress["config"].get(name)
            raise ConfigError(f"{path}: saved with {name} {saved}, but this run has {getattr(config, name)}")
    if progress["vocabulary"] != data.vocabulary:
        had, has = (f"{len(one)} characters" if one else "bytes" for one in (progress["vocabulary"], data.vocabulary))
        raise ConfigError(f"{path}: its tokens are {had}, but those of this run are {'other ' * (had == has)}{has}")
    return progress


def describe_differences(progress: dict[str, Any], config: TrainConfig, data: Data) -> list[str]:
    """Return in which way this run takes other samples than the one that saved the checkpoint."""
    differences = []
    if progress["identity"] != data.identity:
        differences.append(f"data: now {data.source}, another text than before")
    for name in SAMPLED_FROM:
        before, now = progress["config"].get(name), getattr(config, name)
        if before != now:
            differences.append(f"{name}: now {now}, before {before}")
    return differences


def unreadable(path: Path, error: BaseException) -> ConfigError:
    """Return the error for a broken checkpoint."""
    return ConfigError(f"{path}: can't be read: {explain(error)}; fix: name another one with --resume PATH")


# ---- random numbers ----------------------------------------------------------------------------------------------


def capture_random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's generators on this rank; nothing here draws from others."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_state(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Continue the random numbers where they were."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def read_random_states(path: Path) -> list[dict[str, torch.Tensor]]:
    """Return the states of each share of the data; none if rank 0 saved without the others."""
    if not (path / RANDOM).exists():
        return []
    try:
        return list(torch.load(path / RANDOM, weights_only=True)["states"])
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None


# ---- files -----------------------------------------------------------------------------------------------------------


class PlainUnpickler(pickle.Unpickler):
    """Reads the metadata of shards, and makes nothing but records of torch's; torch itself would run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes that such a file needs."""
        from torch.distributed.checkpoint import metadata

        kind = getattr(torch if module == "torch" else metadata, name, None)
        if module == metadata.__name__:  # what it defines, and nothing that it imports
            is_plain = isinstance(kind, type) and kind.__module__ == module
        elif module == "torch":
            is_plain = kind is torch.Size or isinstance(kind, torch.dtype)
        else:
            is_plain = (module, name) in (
                ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                ("torch.serialization", "_get_layout"),
                ("pathlib", "PosixPath"),
                ("pathlib._local", "PosixPath"),
            )
        if not is_plain:
            raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def read_metadata(path: Path) -> Any:
    """Return where the shards are; raise ConfigError if the file holds anything else, or names other files."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        metadata = PlainUnpickler(io.BytesIO((path / METADATA).read_bytes())).load()
        is_plain = all(isinstance(one, TensorStorageMetadata) for one in metadata.state_dict_metadata.values())
        files = {one.relative_path for one in metadata.storage_data.values()}
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None
    if not is_plain or any(Path(name).name != name for name in files):
        raise unreadable(path, pickle.UnpicklingError(f"{METADATA} names more than tensors in this directory"))
    return metadata


def plain_reader(path: Path) -> Any:
    """Return torch's reader of shards, which takes their places from `read_metadata`."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class PlainReader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            metadata = read_metadata(path)
            if metadata.storage_meta is not None:
                metadata.storage_meta.load_id = self.load_id
            return metadata

    return PlainReader(path)


def read_shards(path: Path, weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of a checkpoint that many ranks wrote, in this one process; weights: of that model."""
    from torch.distributed.checkpoint.state_dict_loader import load

    state = {"model": weights}
    load(state, storage_reader=plain_reader(path), no_dist=True)
    return state["model"]


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what a killed run left unfinished."""
    whole = find_whole(folder)
    best, _ = find_best(whole) or (None, 0.0)
    for path in whole[:-keep]:
        if path != best:
            path.rename(path.with_name(f".{path.name}"))
    sync(folder)  # before a file of them is gone: none is ever taken for a checkpoint in part
    for path in folder.glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)


def write_torch(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to a new file, and flush it to the disk; OSError if that is full."""
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # so torch tells of a full disk
            raise OSError(str(error)) from error
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, content: bytes) -> None:
    """Write a new file, and flush it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Flush a directory to the disk: only then do new names in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_to_cpu(value: Any, *, copies: bool = False) -> Any:
    """Return the tensors on the CPU, with `copies` also of those that are there: the next step changes them.

    Shards on GPUs stay there, since async_save itself copies them.
    """
    if isinstance(value, dict):
        return {name: move_to_cpu(part, copies=copies) for name, part in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu":
        return value.detach().clone() if copies else value
    return value if hasattr(value, "to_local") else value.detach().cpu()


def told(path: Path, run: Callable[[], Result]) -> Result:
    """Run what writes a file; raise RunError with one line if that fails."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return run()
    except (OSError, CheckpointException) as error:  # CheckpointException isn't an Exception
        raise RunError(f"{path}: not saved: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """Return the cause of an error in one line; torch wraps an error of the disk in nested tracebacks."""
    while failures := getattr(error, "failures", None):  # a CheckpointException holds the errors of the ranks
        error = next(iter(failures.values()))[0]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{Path(cause.filename).name}: {cause.strerror}" if cause.filename else cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
