"""Checkpoints: where a run saves, what a checkpoint holds, and how a run continues from one on any number of ranks.

    SAVE_DIR/checkpoints/step_120/progress.json    the position in the run, its options and its data
    SAVE_DIR/checkpoints/step_120/random.pt        the states of the random number generators of each rank
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
import json
import os
import pickle
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TextIO

import torch
from torch import nn

from launcher.distributed import World
from launcher.exchange import gather
from launcher.trainer.attempt import find_attempt
from launcher.trainer.config import AUTO, LAST, NONE, SHAPE, ConfigError, RunError, TrainConfig
from launcher.trainer.data import Data
from launcher.trainer.parallel import ParallelDims, on_main

PROGRESS, RANDOM, STATE, METADATA, LOCK = "progress.json", "random.pt", "state.pt", ".metadata", ".lock"
SAMPLED_FROM = ("seed", "validation_fraction", "data_size")  # what decides which samples there are
# What the metadata of shards consists of.
RECORDS = {
    *("torch.Size", "torch.float32", "torch.serialization._get_layout"),
    *("pathlib.PosixPath", "pathlib._local.PosixPath", "torch.distributed.checkpoint.filesystem._StorageInfo"),
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
}  # fmt: skip


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
    attempt = find_attempt()
    resume = AUTO if config.resume == NONE and attempt.is_again else config.resume
    if resume in (AUTO, LAST) and not config.save_dir and not attempt.is_again:
        raise ConfigError("--resume needs --save-dir DIR, because each run has its own directory")
    path = Path(config.save_dir or Path("outputs", attempt.name or time.strftime("%Y%m%d-%H%M%S")))
    if attempt.is_requeued and not config.save_dir:  # `launch` gives a requeued job another id, but Slurm doesn't
        earlier = [lock for lock in Path("outputs").glob(f"*/{LOCK}") if lock.read_text() == attempt.job_id]
        path = max(earlier, key=lambda lock: lock.stat().st_mtime, default=path / LOCK).parent
    if resume == NONE:
        if path.is_dir() and any(path.iterdir()):
            if config.save_dir:
                raise ConfigError(f"{path}: it isn't empty; fix: continue with --resume, or name another --save-dir")
            path = path.with_name(f"{path.name}-{uuid.uuid4().hex[:4]}")
        return str(path), ""
    if resume not in (AUTO, LAST):
        read_progress(Path(resume))
        return str(path), resume
    found = find_whole(path / "checkpoints")
    if resume == LAST and not found:
        fix = "pass --save-dir DIR of a run, or --resume DIR/checkpoints/step_N"
        raise ConfigError(f"{path}: no complete checkpoint to resume; fix: {fix}")
    return str(path), str(found[-1]) if found else ""


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
    file.write(find_attempt().job_id)
    file.flush()
    return file


def find_whole(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, in the order in which they were saved."""
    found = []
    for path in folder.glob("step_*"):
        with suppress(ConfigError):
            found.append((read_progress(path)["saved_at"], path))
    return [path for _, path in sorted(found)]


def read_progress(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself; raise ConfigError if it isn't one, such as a copy that was cut off."""
    needed = {*asdict(Position()), "saved_at", "scaler", "config", "digest"}
    try:
        progress: dict[str, Any] = json.loads((path / PROGRESS).read_text())
        if needed <= {*progress} and ((path / STATE).exists() or (path / METADATA).stat().st_size):
            return progress
    except (OSError, ValueError):
        pass
    raise ConfigError(f"{path}: not a complete checkpoint (a directory such as outputs/RUN/checkpoints/step_60)")


# ---- saving and resuming -------------------------------------------------------------------------------------------


class Checkpoints:
    """Saves the state of a run, and restores it.

    group: of all ranks, on the CPU. model: the one with plain names, inside of DDP.
    """

    def __init__(
        self, config: TrainConfig, dims: ParallelDims, world: World, group: Any, data: Data,
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
    ) -> None:  # fmt: skip
        self._config, self._dims, self._world, self._group, self._data = config, dims, world, group, data
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._folder = Path(config.save_dir) / "checkpoints"
        self._saved: tuple[Position, Path] | None = None

    def save(self, position: Position) -> Path:
        """Save a checkpoint with all ranks; raise RunError on every rank if it can't be written."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        if self._saved is not None and self._saved[0] == position:
            return self._saved[1]
        path, temporary = on_main(partial(self._make_folder, position), self._group)
        random = {"cpu": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self._world.device)
        states = gather(random, self._group)
        # Machines often share no file system: then rank 0 gets all of a sharded model.
        writes_shards = self._dims.is_sharded and all(gather(temporary.exists(), self._group))
        options = StateDictOptions(full_state_dict=not writes_shards, cpu_offload=True)
        model, optimizer = get_state_dict(self._model, self._optimizer, options=options)
        # Without AdamW's options: those of the run that resumes apply.
        state = {"model": model, "optimizer": optimizer.get("state", {})}
        if writes_shards:
            write_shards(temporary, state, self._group)
        files = {RANDOM: {"states": states}, **({} if writes_shards else {STATE: state})}
        on_main(partial(self._complete, position, files, path, temporary), self._group)
        self._saved = position, path
        return path

    def _make_folder(self, position: Position) -> tuple[Path, Path]:
        """Return a name that no checkpoint has, and the directory in which it is written."""
        path = self._folder / f"step_{position.step}"
        while path.exists():  # a run that resumed from an earlier checkpoint comes here again
            path = path.with_name(f"{path.name}_again")
        temporary = path.with_name(f".{path.name}_{uuid.uuid4().hex[:8]}")
        temporary.mkdir(parents=True)
        return path, temporary

    def _complete(self, position: Position, files: dict[str, Any], path: Path, temporary: Path) -> None:
        """Write what rank 0 writes; once all is on the disk, make it a checkpoint."""
        progress = {
            **asdict(position),
            "saved_at": time.time(),
            "scaler": self._scaler.state_dict(),
            "config": asdict(self._config),
            "digest": self._data.digest,
            "torch": torch.__version__,
        }
        for earlier in find_whole(self._folder)[-1:]:  # they are ordered by time, also if this host's clock is behind
            progress["saved_at"] = max(progress["saved_at"], read_progress(earlier)["saved_at"] + 0.001)
        with flushed(temporary / PROGRESS) as file:
            file.write(json.dumps(progress, indent=1).encode())
        for name, content in files.items():
            with flushed(temporary / name) as file:
                torch.save(content, file)
        sync(temporary)
        temporary.rename(path)
        sync(self._folder)  # before an older one is removed
        prune(self._folder, self._config.keep)

    def export(self) -> Path:
        """Write model.pt: all weights on the CPU under their plain names, and the options."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        path = Path(self._config.save_dir) / "model.pt"
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self._model, options=options)

        def write() -> None:
            with flushed(path.with_name(".model.pt")) as file:
                torch.save({"model": weights, "config": asdict(self._config)}, file)
            path.with_name(".model.pt").replace(path)
            sync(path.parent)

        on_main(write, self._group)
        return path

    def resume(self, path: Path) -> tuple[Position, list[str]]:
        """Continue from a checkpoint; return its position, and what of this run differs from the one that saved it."""
        progress, differences = on_main(partial(check_progress, path, self._config, self._data), self._group)
        if on_main((path / STATE).exists, self._group):
            self._load_whole(path)
        elif all(gather((path / METADATA).exists(), self._group)):
            self._load_shards(path)
        else:
            raise ConfigError(f"{path}: all ranks wrote it, but not all see it here; fix: put it on a shared disk")
        load = partial(load_tensors, path / RANDOM)
        sees_it = all(gather((path / RANDOM).exists(), self._group))
        states = (load() if sees_it else on_main(load, self._group))["states"]
        if len(states) == self._world.world_size:
            own = states[self._world.rank]
            torch.set_rng_state(own["cpu"])
            if "cuda" in own and self._world.device.type == "cuda":
                torch.cuda.set_rng_state(own["cuda"], self._world.device)
        elif self._config.dropout:
            differences.append(f"random numbers: new ones, since {len(states)} ranks saved theirs")
        if progress["scaler"]:  # the run that saved it may have had none
            self._scaler.load_state_dict(progress["scaler"])
        position = Position(progress["step"], progress["epoch"], progress["samples"])
        if path.parent == self._folder:
            self._saved = position, path
        return position, differences

    def _load_whole(self, path: Path) -> None:
        """Read the state on rank 0, which sends each rank its part."""
        from torch.distributed.checkpoint import state_dict

        if self._world.world_size > 1 and not all(gather(find_spec("numpy") is not None, self._group)):
            raise ConfigError(f"{path}: several ranks resume with torch's help, which needs numpy; fix: install numpy")
        saved: dict[str, Any] = {"model": {}}
        on_main(lambda: saved.update(load_tensors(path / STATE)), self._group)
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

        model, optimizer = state_dict.get_state_dict(self._model, self._optimizer)
        state = read_shards(path, {"model": model, "optimizer": optimizer["state"]}, self._group)
        state_dict.set_model_state_dict(self._model, state["model"])
        optimizer["state"] = state["optimizer"]
        state_dict.set_optimizer_state_dict(self._model, self._optimizer, optimizer)


# ---- what a checkpoint says of the run that saved it ------------------------------------------------------------


def check_progress(path: Path, config: TrainConfig, data: Data) -> tuple[dict[str, Any], list[str]]:
    """Return what a checkpoint says, and in which way this run takes other samples than the one that saved it.

    Raise ConfigError if its model isn't this one.
    """
    progress = read_progress(path)
    for name in SHAPE:
        if progress["config"].get(name) != getattr(config, name):
            saved = progress["config"].get(name)
            raise ConfigError(f"{path}: saved with {name} {saved}, but this run has {getattr(config, name)}")
    differences = []
    if progress["digest"] != data.digest:
        differences.append(f"data: now {data.source}, another text than before")
    for name in SAMPLED_FROM:
        before, now = progress["config"].get(name), getattr(config, name)
        if before != now:
            differences.append(f"{name}: now {now}, before {before}")
    return progress, differences


# ---- files -----------------------------------------------------------------------------------------------------------


def load_tensors(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values; raise ConfigError if it holds anything else."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None
    return content


class RecordUnpickler(pickle.Unpickler):
    """Reads the metadata of shards, and makes nothing but records of torch's; torch itself would run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes that such a file needs."""
        if f"{module}.{name}" not in RECORDS:
            raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def write_shards(path: Path, state: dict[str, Any], group: Any) -> None:
    """Write this rank's part of a state; raise RunError on every rank if one can't."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(state, storage_writer=FileSystemWriter(path), process_group=group)
    except CheckpointException as error:  # not an Exception
        raise RunError(f"{path}: can't be written: {explain(error)}") from None


def read_shards(path: Path, state: dict[str, Any], group: Any = None) -> dict[str, Any]:
    """Return the state with the tensors of a checkpoint that many ranks wrote; without a group in one process."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    class RecordReader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return metadata

    try:
        with (path / METADATA).open("rb") as file:
            metadata = RecordUnpickler(file).load()
        load(state, storage_reader=RecordReader(path), process_group=group, no_dist=group is None)
    except (CheckpointException, Exception) as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None
    return state


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what a killed run left unfinished."""
    for path in find_whole(folder)[:-keep]:
        path.rename(path.with_name(f".{path.name}"))
    sync(folder)  # before a file of them is gone: none is ever taken for a checkpoint in part
    for path in folder.glob(".step_*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def flushed(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file, and flush it to the disk at the end; raise OSError with its name if that fails."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the disk is full
        raise OSError(0, explain(error), str(path)) from error


def sync(folder: Path) -> None:
    """Flush a directory to the disk: only then do new names in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unreadable(path: Path, error: BaseException) -> ConfigError:
    """Return the error for a file or a checkpoint that is broken, or none."""
    return ConfigError(f"{path}: can't be read: {explain(error)}; fix: name another one")


def explain(error: BaseException) -> str:
    """Return an error in one line; torch wraps an error of the disk in others."""
    while failures := getattr(error, "failures", None):  # a CheckpointException holds the errors of the ranks
        error = next(iter(failures.values()))[0]
    while not isinstance(error, OSError) and error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
