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

import copy
import fcntl
import json
import math
import os
import pickle
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
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
from launcher.trainer.parallel import ParallelDims, make_cpu_group, on_main

PROGRESS, RANDOM, STATE, METADATA, LOCK = "progress.json", "random.pt", "state.pt", ".metadata", ".lock"
SAMPLED_FROM = ("seed", "validation_fraction", "tokens", "data_size")  # what decides which samples there are
# What the metadata of shards consists of.
RECORDS = {
    "torch": ("Size", "float32"),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"),
        *("StorageMeta", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "pathlib": ("PosixPath",),
    "pathlib._local": ("PosixPath",),
}


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
    is_again = bool(attempt.name and (attempt.restarts or attempt.requeues))
    resume = AUTO if config.resume == NONE and is_again else config.resume
    if config.evaluate_only and resume in (NONE, AUTO):
        resume = LAST
    if resume in (AUTO, LAST) and not config.save_dir and not is_again:
        raise ConfigError("--resume and --evaluate-only need --save-dir DIR, because each run has its own directory")
    path = Path(config.save_dir or Path("outputs", attempt.name or time.strftime("%Y%m%d-%H%M%S")))
    if attempt.requeues and not config.save_dir:  # `launch` gives a requeued job another id, but Slurm doesn't
        earlier = [lock for lock in Path("outputs").glob(f"*/{LOCK}") if lock.read_text() == attempt.job_id]
        path = max(earlier, key=lambda lock: lock.stat().st_mtime, default=path / LOCK).parent
    if resume == NONE:
        if path.is_dir() and any(path.iterdir()):
            if config.save_dir:
                raise ConfigError(f"{path}: it isn't empty; fix: continue with --resume, or name another --save-dir")
            path = path.with_name(f"{path.name}-{uuid.uuid4().hex[:4]}")
        return str(path), ""
    if resume not in (AUTO, LAST):
        check_whole(Path(resume))
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
    file.write(find_attempt().job_id or "")
    file.flush()
    return file


def find_whole(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, in the order in which they were saved."""
    found = [(progress["saved_at"], path) for path in folder.glob("step_*") if (progress := read_progress(path))]
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


def check_whole(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself; raise ConfigError if it isn't one."""
    progress = read_progress(path)
    if progress is None:
        raise ConfigError(f"{path}: not a complete checkpoint (a directory such as outputs/RUN/checkpoints/step_60)")
    return progress


def find_best(paths: Sequence[Path]) -> tuple[Path, float] | None:
    """Return the checkpoint with the least validation loss, and that loss; None if none was validated."""
    losses = [(progress.get("validation_loss"), path) for path in paths if (progress := read_progress(path))]
    known = [(loss, path) for loss, path in losses if isinstance(loss, float) and math.isfinite(loss)]
    loss, path = min(known, default=(math.inf, Path()))
    return (path, loss) if known else None


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
        token = Path(self._config.save_dir, on_main(lambda: f".shared_{uuid.uuid4().hex}", self._group))
        on_main(token.touch, self._group)
        is_shared = all(gather(token.exists(), self._group))
        on_main(token.unlink, self._group)
        return is_shared

    def save(self, position: Position, validation_loss: float | None = None) -> Path:
        """Save a checkpoint with all ranks; with --async-save it is in flight when this returns.

        Raise RunError on every rank if it, or the save before it, can't be written.
        """
        if self._saved is not None and self._saved[0] == position:
            return self._saved[1]
        self.finish()
        path, temporary = on_main(partial(self._make_folder, position), self._group)
        self._saved = position, path
        progress = {
            **asdict(position),
            "saved_at": time.time(),
            "validation_loss": validation_loss,
            "scaler": self._scaler.state_dict(),
            "config": asdict(self._config),
            "vocabulary": self._data.vocabulary,
            "identity": self._data.identity,
            "torch": torch.__version__,
        }
        random = {"cpu": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self._world.device)
        states = gather(random, self._group)[:: self._dims.tp]  # ranks that share matrix products draw the same
        state = self._capture_state()
        if self._config.async_save and self._world.device.type == "cpu":
            state = copy.deepcopy(state)  # the next step changes it
        self._in_flight = self._thread.submit(self._write, state, progress, states, path, temporary)
        if not self._config.async_save:
            self.finish()
        return path

    def _make_folder(self, position: Position) -> tuple[Path, Path]:
        """Return a name that no checkpoint has, and the directory in which it is written."""
        path = self._folder / f"step_{position.step}"
        while path.exists():  # a run that resumed from an earlier checkpoint comes here again
            path = path.with_name(f"{path.name}_again")
        temporary = path.with_name(f".{path.name}_{uuid.uuid4().hex[:8]}")
        temporary.mkdir(parents=True)
        return path, temporary

    def _capture_state(self) -> dict[str, Any]:
        """Return weights and AdamW's state on the CPU: this rank's shards, or on rank 0 all of them.

        AdamW's options aren't part of it: those of this run apply on resume, too.
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=not self._is_shared, cpu_offload=True)
        model, optimizer = get_state_dict(self._model, self._optimizer, options=options)
        return {"model": model, "optimizer": optimizer.get("state", {})}

    def _write(
        self, state: dict[str, Any], progress: dict[str, Any], states: list[Any], path: Path, temporary: Path
    ) -> None:
        """Write this rank's part; once all parts are on the disk, rank 0 makes them a checkpoint."""
        if self._is_shared:
            from torch.distributed.checkpoint.filesystem import FileSystemWriter
            from torch.distributed.checkpoint.state_dict_saver import save

            save(state, storage_writer=FileSystemWriter(temporary), process_group=self._save_group)
        if not self._world.is_main:
            return
        for earlier in find_whole(self._folder)[-1:]:  # they are ordered by time, also if this host's clock is behind
            progress["saved_at"] = max(progress["saved_at"], check_whole(earlier)["saved_at"] + 0.001)
        with flushed(temporary / PROGRESS) as file:
            file.write(json.dumps(progress, indent=1).encode())
        with flushed(temporary / RANDOM) as file:
            torch.save({"states": states}, file)
        if not self._is_shared:
            with flushed(temporary / STATE) as file:
                torch.save(state, file)
        sync(temporary)
        temporary.rename(path)
        sync(self._folder)  # before an older one is removed
        prune(self._folder, self._config.keep)

    def finish(self) -> None:
        """Wait on every rank for the save in flight; raise RunError on all of them if it has failed on one."""
        from torch.distributed.checkpoint.api import CheckpointException

        if self._saved is None:
            return
        saving, self._in_flight, failure = self._in_flight, None, ""
        try:
            if saving is not None:
                saving.result()
        except (OSError, CheckpointException) as error:  # CheckpointException isn't an Exception
            failure = f"{self._saved[1]}: not saved: {explain(error)}"
        if failures := [one for one in gather(failure, self._group) if one]:
            self._saved = None
            raise RunError(failures[0])

    def find_newest(self) -> Path | None:
        """Return the checkpoint of this directory that was saved last, or None; other ranks may be gone."""
        if self._in_flight is not None and not self._is_shared:
            wait([self._in_flight])
        found = find_whole(self._folder)
        return found[-1] if found else None

    def export(self) -> Path:
        """Write model.pt: all weights on the CPU under their plain names, the options and the vocabulary."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        self.finish()
        path = Path(self._config.save_dir) / "model.pt"
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self._model, options=options)

        def write() -> None:
            with flushed(path.with_name(".model.pt")) as file:
                torch.save(
                    {"model": weights, "config": asdict(self._config), "vocabulary": self._data.vocabulary}, file
                )
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
        states = on_main(partial(load_tensors, path, RANDOM), self._group)["states"]
        if len(states) == self._dims.dp_size:
            own = states[self._dims.dp_rank]
            torch.set_rng_state(own["cpu"])
            if "cuda" in own and self._world.device.type == "cuda":
                torch.cuda.set_rng_state(own["cuda"], self._world.device)
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

        if self._world.world_size > 1 and not all(gather(find_spec("numpy") is not None, self._group)):
            raise ConfigError(f"{path}: several ranks resume with torch's help, which needs numpy; fix: install numpy")
        saved: dict[str, Any] = {"model": {}}
        on_main(lambda: saved.update(load_tensors(path, STATE)), self._group)
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
        state = read_shards(path, {"model": model, "optimizer": optimizer["state"]}, self._save_group or self._group)
        state_dict.set_model_state_dict(self._model, state["model"])
        optimizer["state"] = state["optimizer"]
        state_dict.set_optimizer_state_dict(self._model, self._optimizer, optimizer)


# ---- what a checkpoint says of the run that saved it ------------------------------------------------------------


def check_progress(path: Path, config: TrainConfig, data: Data) -> tuple[dict[str, Any], list[str]]:
    """Return what a checkpoint says, and in which way this run takes other samples than the one that saved it.

    Raise ConfigError if its model isn't this one.
    """
    progress = check_whole(path)
    for name in SHAPE:
        if progress["config"].get(name) != getattr(config, name):
            saved = progress["config"].get(name)
            raise ConfigError(f"{path}: saved with {name} {saved}, but this run has {getattr(config, name)}")
    if progress["vocabulary"] != data.vocabulary:
        had, has = (f"{len(one)} characters" if one else "bytes" for one in (progress["vocabulary"], data.vocabulary))
        raise ConfigError(f"{path}: its tokens are {had}, but those of this run are {'other ' * (had == has)}{has}")
    differences = []
    if progress["identity"] != data.identity:
        differences.append(f"data: now {data.source}, another text than before")
    for name in SAMPLED_FROM:
        before, now = progress["config"].get(name), getattr(config, name)
        if before != now:
            differences.append(f"{name}: now {now}, before {before}")
    return progress, differences


# ---- files -----------------------------------------------------------------------------------------------------------


def load_tensors(path: Path, name: str) -> dict[str, Any]:
    """Read a file of a checkpoint, of tensors and plain values; raise ConfigError if it holds anything else."""
    try:
        content: dict[str, Any] = torch.load(path / name, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None
    return content


class RecordUnpickler(pickle.Unpickler):
    """Reads the metadata of shards, and makes nothing but records of torch's; torch itself would run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes that such a file needs."""
        if name not in RECORDS.get(module, ()):
            raise pickle.UnpicklingError(f"{METADATA} holds {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


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
    except Exception as error:  # noqa: BLE001  # a broken file can raise anything
        raise unreadable(path, error) from None
    try:
        load(state, storage_reader=RecordReader(path), process_group=group, no_dist=group is None)
    except CheckpointException as error:  # not an Exception
        raise unreadable(path, error) from None
    return state


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
    """Return the error for a broken checkpoint."""
    return ConfigError(f"{path}: can't be read: {explain(error)}; fix: name another checkpoint")


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
