"""The save directory: what lies in it is whole or not there, whatever dies in between.

    SAVE_DIR/checkpoints/step_120/                 one checkpoint, as torch.distributed.checkpoint writes it
    SAVE_DIR/checkpoints/step_120/progress.json    how far it is, and the options it was made with
    SAVE_DIR/model.pt                              the weights alone, for torch.load
    SAVE_DIR/metrics.jsonl                         what the run told of itself
    SAVE_DIR/.lock                                 locked while a run saves there
    SAVE_DIR/.trainer.json                         that the trainer writes this directory, and in which run

A checkpoint is written under a temporary name, and renamed when all ranks are through.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from multiprocessing.util import register_after_fork
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

import torch

from launcher.trainer.config import SHAPE
from launcher.trainer.options import ConfigError, RunError

PROGRESS = "progress.json"
LOCK = ".lock"
FILES = ("model.pt", "metrics.jsonl")
NAME = re.compile(r"step_\d+")
NEEDED = {"step": int, "epoch": int, "samples": int, "saved_at": float, "scaler": dict, "kind": str, "config": dict}


class SaveError(RunError):
    """What could not be saved, and why."""

    def __init__(self, path: Path, error: BaseException) -> None:
        super().__init__(f"{path}: not saved: {explain(error)}")


def make_folder(path: str) -> None:
    """Make the directory to save in, before an hour of training finds that it can't be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
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
    """Keep other runs out of the save directory, until the file is closed or the process ends, however it does."""
    file = (Path(path) / LOCK).open("a")
    register_after_fork(file, lambda held: held.close())  # a loader process must not hold it longer than its rank
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{path}: another run saves there") from None
    except OSError:
        pass  # a file system without locks
    return file


def find_newest(folder: Path) -> Path | None:
    """Return the whole checkpoint in `folder` that was saved last, which an earlier run may have left."""
    whole = find_whole(folder)
    return whole[-1] if whole else None


def find_whole(folder: Path) -> list[Path]:
    """List the whole checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if NAME.fullmatch(path.name))
    found = [(progress["saved_at"], path) for path in paths if (progress := read_progress(path)) is not None]
    return [path for _, path in sorted(found)]


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return what `progress.json` says, or None where this is no whole checkpoint, a half-copied one say."""
    try:
        progress = json.loads((path / PROGRESS).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return progress if is_complete(progress) and has_content(path / ".metadata") else None


def has_content(path: Path) -> bool:
    """Be false for a file of no bytes as well, which a copy that was cut off leaves."""
    return path.is_file() and path.stat().st_size > 0


def is_complete(progress: Any) -> bool:
    """Find all there that a run needs to go on."""
    if not isinstance(progress, dict) or not all(isinstance(progress.get(name), NEEDED[name]) for name in NEEDED):
        return False
    return all(name in progress["config"] for name in SHAPE)


def explain(error: BaseException) -> str:
    """Say in one line what is behind an error: torch wraps what the disk said, and shows it with nested tracebacks."""
    while failures := getattr(error, "failures", None):  # a CheckpointException has the errors of the ranks
        error = next(iter(failures.values()))[0]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{Path(cause.filename).name}: {cause.strerror}" if cause.filename else cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete directory its name; one of that name, from an earlier run, makes way for it."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    temporary.rename(path)
    sync_folder(path.parent)


def prune(folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints but `keep`, and what a run that was killed left half done.

    One that was saved under a larger --keep was promised to stay, and does: only a run that keeps as many removes it.
    Checkpoints are renamed first, so that none is ever there in part.
    """
    for path in find_whole(folder)[:-keep]:
        if read_keep(path) <= keep:
            path.rename(path.with_name(f".{path.name}.old"))
    for leftover in folder.glob(".step_*"):
        shutil.rmtree(leftover, ignore_errors=True)


def read_keep(path: Path) -> int:
    """Return the --keep of the run that saved a checkpoint; 0 where it doesn't say."""
    progress = read_progress(path)
    keep = progress["config"].get("keep") if progress is not None else None
    return keep if isinstance(keep, int) else 0


def save_file(path: Path, state: dict[str, Any]) -> None:
    """Replace `path` by `state`; a reader sees the old file or the new one, never a part.

    `state` holds tensors and plain values only, so `torch.load(path, weights_only=True)` reads it.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put a new name on disk: it is safe from a power cut only then."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
