"""Save checkpoints that are whole or not there, whatever dies in between."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from launcher.trainer.config import ConfigError


def make_folder(path: str) -> None:
    """Make the folder to save in, before an hour of training finds that it can't be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        checked = Path(path) / ".writable"
        checked.touch()
        checked.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: can't save there: {error.strerror}") from None


def save_checkpoint(path: Path, state: Mapping[str, object]) -> None:
    """Replace `path` by `state`; a reader sees the old file or the new one, never a part.

    `state` holds tensors and plain values only, so `torch.load(path, weights_only=True)` reads it.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    # The new name is safe from a power cut only once the folder is on disk too.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
