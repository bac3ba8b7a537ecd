"""The save directory: each file in it is complete or absent, whatever process dies while it is written.

    SAVE_DIR/checkpoints/step_120/                 one checkpoint, as torch.distributed.checkpoint writes it
    SAVE_DIR/checkpoints/step_120/progress.json    its position in the run, and the options of the run
    SAVE_DIR/model.pt                              the weights alone, for torch.load
    SAVE_DIR/metrics.jsonl                         the losses and other metrics of the run
    SAVE_DIR/.lock                                 locked while a run saves there
    SAVE_DIR/.trainer.json                         marks the directory as the trainer's, and identifies the run

A checkpoint is written under a temporary name, and renamed when all ranks have finished; `replacement` has the steps.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
import shutil
from collections.abc import Sequence
from multiprocessing.util import register_after_fork
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

import torch

from launcher.trainer.checkpoints.replacement import (
    discard,
    find_displaced,
    make_durable,
    restore_displaced,
    sync_file,
    sync_folder,
)
from launcher.trainer.config import SHAPE
from launcher.trainer.options import ConfigError, RunError

PROGRESS = "progress.json"
LOCK = ".lock"
FILES = ("model.pt", "metrics.jsonl")
NAME = re.compile(r"step_\d+")
NEEDED = {"step": int, "epoch": int, "samples": int, "saved_at": float, "scaler": dict, "kind": str, "config": dict}


class SaveError(RunError):
    """Something could not be saved; the text says what and why."""

    def __init__(self, path: Path, error: BaseException) -> None:
        super().__init__(f"{path}: not saved: {explain(error)}")


def make_folder(path: str) -> None:
    """Make the save directory and check that it is usable, so that a run fails before an hour of training."""
    try:
        make_durable(Path(path))
        TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(f"{path}: can't save there: {error.strerror}") from None
    checkpoints = Path(path) / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise ConfigError(f"{checkpoints}: can't save there: Not a directory")
    for name in FILES:
        if (Path(path) / name).is_dir():
            raise ConfigError(f"{Path(path) / name}: can't save there: Is a directory")


def lock_folder(path: str) -> TextIO:
    """Keep other runs out of the save directory until the file is closed or the process ends, even if it is killed."""
    file = (Path(path) / LOCK).open("a")
    register_after_fork(file, lambda held: held.close())  # a child process must not hold the lock longer than its rank
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{path}: another run is saving there") from None
    except OSError:
        pass  # the file system has no locks
    return file


def find_newest(folder: Path) -> Path | None:
    """Return the complete checkpoint in `folder` that was saved last, even by an earlier run, or None."""
    whole = find_whole(folder)
    return whole[-1] if whole else None


def find_whole(folder: Path) -> list[Path]:
    """Return the complete checkpoints in `folder`, oldest first, with those that a killed run was about to replace."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)] + find_displaced(folder)
    found = [(progress["saved_at"], path) for path in paths if (progress := read_progress(path)) is not None]
    return [path for _, path in sorted(found)]


def find_best(paths: Sequence[Path]) -> tuple[Path, float] | None:
    """Return which of these checkpoints has the least validation loss, and that loss; None if none was validated."""
    losses = [(progress.get("validation_loss"), path) for path in paths if (progress := read_progress(path))]
    known = [(loss, path) for loss, path in losses if isinstance(loss, float) and math.isfinite(loss)]
    if not known:
        return None
    loss, path = min(known, key=lambda one: one[0])
    return path, loss


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the content of `progress.json`, or None if the checkpoint isn't complete, such as a half-copied one."""
    try:
        progress = json.loads((path / PROGRESS).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return progress if is_complete(progress) and has_content(path / ".metadata") else None


def has_content(path: Path) -> bool:
    """Return whether a file exists and isn't empty, as a truncated copy may be."""
    return path.is_file() and path.stat().st_size > 0


def is_complete(progress: Any) -> bool:
    """Return whether `progress` has all that a run needs to resume."""
    if not isinstance(progress, dict) or not all(isinstance(progress.get(name), NEEDED[name]) for name in NEEDED):
        return False
    return all(name in progress["config"] for name in SHAPE)


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


def prune(folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints except the last `keep` and the best, and what a killed run left unfinished.

    A checkpoint saved with a larger --keep stays: only a run with at least that --keep removes it.
    """
    restore_displaced(folder)
    leftovers = list(folder.glob(".step_*"))
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    if leftovers:
        # A displaced checkpoint that is removed in part must be gone before the one in its place is removed.
        sync_folder(folder)
    whole = find_whole(folder)
    best, _ = find_best(whole) or (None, 0.0)
    discard([path for path in whole[:-keep] if path != best and read_keep(path) <= keep])


def read_keep(path: Path) -> int:
    """Return the --keep of the run that saved a checkpoint; 0 if it isn't recorded."""
    progress = read_progress(path)
    keep = progress["config"].get("keep") if progress is not None else None
    return keep if isinstance(keep, int) else 0


def save_file(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`; a reader sees the old file or the new one, never a part of it.

    `state` holds tensors and plain values only, so `torch.load(path, weights_only=True)` reads it. Raise OSError if the
    disk is full: torch raises RuntimeError then.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            sync_file(file)
        temporary.replace(path)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
