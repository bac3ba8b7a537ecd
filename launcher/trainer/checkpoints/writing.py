"""Write the files of a checkpoint with torch.distributed.checkpoint: at once, or while the training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from launcher.trainer.checkpoints.replacement import sync_folder
from launcher.trainer.checkpoints.save_folder import SaveError


class DurableWriter(FileSystemWriter):
    """Write the files as FileSystemWriter does, which flushes their content; flush their names too, on each rank."""

    def write_data(self, *args: Any) -> Any:
        """Write and flush this rank's file."""
        written = super().write_data(*args)
        sync_folder(Path(self.path))
        return written

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Write and flush the metadata, on rank 0 when all ranks have written."""
        super().finish(metadata, results)
        sync_folder(Path(self.path))


def write_files(state: dict[str, Any], folder: Path, group: Any) -> None:
    """Write this rank's part of `state`; all ranks of the group must call this, and it returns when all have written.

    Raise OSError or CheckpointException, on every rank of the group, if one of them can't write.
    """
    save(state, storage_writer=DurableWriter(folder), process_group=group)


class SaveInFlight:
    """A checkpoint that is written while the training continues; `wait` returns when it is in its place.

    Until `complete` has run, its directory has a temporary name, so it is never taken for a checkpoint.
    """

    def __init__(
        self, state: dict[str, Any], folder: Path, group: Any, path: Path, complete: Callable[[], object]
    ) -> None:
        self._path = path
        self._complete = complete
        self._ended = threading.Event()
        self._error: BaseException | None = None
        saving: Any = async_save(copy_from_cpu(state), storage_writer=DurableWriter(folder), process_group=group)
        # torch 2.9 and later may return both futures, of the copy and of the writing.
        future: Future[Any] = getattr(saving, "upload_completion", saving)
        future.add_done_callback(self._end)

    def _end(self, future: Future[Any]) -> None:
        """Put the checkpoint in its place, in the thread that has written it."""
        try:
            future.result()
            self._complete()
        except BaseException as error:  # noqa: BLE001  # `wait` raises it; CheckpointException isn't an Exception
            self._error = error
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait for the end; raise SaveError if the checkpoint couldn't be saved."""
        self._ended.wait()
        if isinstance(self._error, (Exception, CheckpointException)):
            raise SaveError(self._path, self._error) from self._error
        if self._error is not None:
            raise self._error


def copy_from_cpu(value: Any) -> Any:
    """Copy the tensors on the CPU, which the next step changes; torch before 2.9 copies only those on a GPU."""
    if isinstance(value, dict):
        return {name: copy_from_cpu(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_from_cpu(part) for part in value]
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.detach().clone()
    return value
